"""What pickles of the script's own classes do on a rank: exits inside them, and pools of
processes.
"""

from textwrap import dedent

import pytest

EXITS = """
class Exits(Exception):
    def __init__(self, where="reduce"):
        self.where = where

    def __reduce__(self):
        if self.where == "reduce":
            raise SystemExit(3)
        return leave, ()

    def __str__(self):
        if self.where == "str":
            raise SystemExit(4)
        return "an error"

def leave():
    raise SystemExit(5)

class Key:
    def __reduce__(self):
        raise SystemExit(6)
"""


@pytest.mark.whole
def test_exits_while_an_exception_is_told_are_no_end_of_a_rank(start):
    script = start(
        EXITS
        + dedent("""
        @synk.function(outputs=None)
        def fails(x, where):
            raise Exits(where)

        @synk.function(outputs=None)
        def keyed(x):
            return {Key(): 1.0}

        with synk.fork(2, device="cpu") as world:
            for where in ("reduce", "load", "str"):
                try:
                    fails(np.ones(4), where)
                except synk.RankError as error:
                    say(where, error.failures[0].type_name, len(error.failures))
            try:
                keyed(np.ones(4))
            except synk.RankError as error:
                say("key", error.failures[0].type_name)
            try:
                fails(np.ones(4), Key())
            except synk.ArgumentError as error:
                say("argument", error)
            say(world.closed)
    """)
    )
    for where in ("reduce", "load", "str"):
        script.expect(f"{where} Exits 2")
    script.expect("key SystemExit")
    script.expect("argument where of fails is a Key, which cannot be sent to the ranks.*")
    script.expect("False")


def test_a_pool_of_processes_on_a_rank(start, tmp_path):
    (tmp_path / "workers.py").write_text("def half(number):\n    return number / 2\n")
    script = start(f"""
        import multiprocessing, multiprocessing.pool
        sys.path.insert(0, {str(tmp_path)!r})
        import workers

        def own(number):
            return number * 2

        @synk.function(outputs=None)
        def pooled(x, kind):
            pool = multiprocessing.pool.ThreadPool if kind == "threads" else multiprocessing.Pool
            with pool(2) as workers_of_rank:
                return sum(workers_of_rank.map(workers.half if kind == "module" else own, [2.0, 4.0]))

        with synk.fork(2, device="cpu"):
            say([float(one) for one in pooled(np.ones(4), "module")], [float(one) for one in pooled(np.ones(4), "threads")])
            try:
                pooled(np.ones(4), "own")
            except synk.RankError as error:
                say(str(error).replace(chr(10), " "))
    """)  # noqa: E501
    script.expect(r"\[3.0, 3.0\] \[12.0, 12.0\]")
    script.expect(
        ".*PicklingError.*copies on a rank.*Define them in a module of their own.*ThreadPool.*"
    )
