"""A random attack: scripts in odd environments, struck by faults at random moments, and what must
hold whatever comes.

cases.py      what is drawn: environment × phase × fault × thread
victim.py     the script that is attacked; each case runs a copy of it
arena.py      starts the script, strikes, waits for its end, and tells what is not as promised
__main__.py   draws, runs and counts cases until the time is over

python -m tests.faults.attack --minutes 10 --seed 1
python -m tests.faults.attack --replay 1:57 --times 20
"""
