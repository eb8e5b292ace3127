"""The commands of `synknumba` and `python -m synknumba`, one module each; `_cli.py` has the parser.

A module has `add(commands)`, which describes the command's arguments, and names the function that
runs it. That function gets the parsed arguments and returns the exit status: 0; 1 if the command
has found what it looks for (a problem of the machine, an error in a kernel); 2 if it cannot do its
work.

Called by `_cli.py` only; imports any package. Read `new.py` first, a short one; `check.py` and
`bench.py` have their parts in files of those names.
"""
