"""Machines with a network, a host name and a /dev/shm of their own."""

import pytest

from tests.machines import namespaces
from tests.machines.jobs import start
from tests.machines.namespaces import Network
from tests.machines.test_conformance import run

pytestmark = [pytest.mark.mpi, pytest.mark.whole]


@pytest.fixture(scope="module", autouse=True)
def _machines() -> None:
    if reason := namespaces.problem():
        pytest.skip(reason)


def test_what_scripts_do(tmp_path):
    """Rows there and back, results, collectives, an error and a death, which tells the machine
    by its name.
    """
    with Network(3, tmp_path) as network:
        job = start(
            3,
            2,
            """
            @synk.function(outputs=("gather", "sum"))
            def surroundings(x):
                return np.array([os.uname().nodename]), len([name for name in os.listdir("/dev/shm") if "test" in name])

            @synk.function(outputs=None, inout=("x",))
            def double(x):
                x *= 2.0

            @synk.function(outputs=None)
            def fail(x, rank):
                raise ValueError(f"on {rank}")

            with synk.fork(device="cpu") as world:
                open("/dev/shm/test", "w").close()  # the script's machine has two ranks
                names, found = surroundings(ROWS)
                say(*names, found)
                assert total(ROWS) == ROWS.sum()
                x = synk.data(ROWS.copy())
                double(x)
                assert (x.data == 2.0 * ROWS).all()
                rows = np.arange(0, 1000, 7)
                assert total(x, batch=rows) == 2.0 * rows.sum()
                w = synk.variable(np.arange(200_000.0))
                synk.all_reduce(w, "sum")
                assert (w.get_value() == 6.0 * np.arange(200_000.0)).all()
                try:
                    fail(x, synk.RANK)
                except synk.RankError as error:
                    say("failures", len(error.failures))
                try:
                    strike(x, synk.RANK, 5, 0)
                except synk.RankDied as error:
                    assert "machine2" in str(error), error
                    say("died", error.rank)
                assert (x.data == 2.0 * ROWS).all()
            """,  # noqa: E501
            tmp_path,
            network,
        )
        names = "machine0 machine0 machine1 machine1 machine2 machine2 2"
        assert job.finish() == [names, "failures 6", "died 5"]
        job.check_nothing_left()


def test_a_machine_lacks_the_working_directory(tmp_path):
    """The script gets an error that names the folder and the machine, and the next world starts
    where there is one.
    """
    home = tmp_path / "home"
    (home / "only").mkdir(parents=True)
    with Network(2, tmp_path, hidden=home) as network:
        job = start(
            2,
            1,
            f"""
            os.chdir({str(home / "only")!r})
            try:
                synk.fork(device="cpu")
            except synk.WorldError as error:
                say(error, *error.__notes__)
            os.chdir("/")
            with synk.fork(device="cpu"):
                say(total(ROWS))
            """,
            tmp_path,
            network,
        )
        refusal, result = job.finish()
        assert refusal == (
            f"the script's working directory, {str(home / 'only')!r}, in which all ranks start, "
            "cannot be entered here: No such file or directory. Start the job in a folder that all "
            "machines have, or os.chdir() to one before fork() raised on machine 1 (machine1)"
        )
        assert result == "500500.0"
        job.check_nothing_left()


def test_the_network_is_cut(tmp_path):
    """In the middle of calls: the error names the machine that is silent, `Data` are there, and no
    rank is left anywhere.

    Launchers may wait for the other machine for ever.
    """
    with Network(2, tmp_path) as network:
        job = start(
            2,
            2,
            """
            x = synk.data(ROWS)
            with synk.fork(device="cpu"):
                total(x)
                heard = time.monotonic()
                say("ready")
                try:
                    while True:
                        total(x)
                        heard = time.monotonic()
                except synk.RankDied as error:
                    assert "machine 1 (machine1)" in str(error) and "has not been heard of for 5 s" in str(error), error
                    say("lost", time.monotonic() - heard < 30.0, (x.data == ROWS).all())
            os._exit(3)  # MPI is of no use any more
            """,  # noqa: E501
            tmp_path,
            network,
        )
        job.expect("ready")
        network.cut(1)
        assert job.expect("lost") == "lost True True"
        job.check_nothing_left(60.0, of_launcher=False)
        job.kill()


def test_conformance(tmp_path):
    with Network(2, tmp_path) as network:
        assert run(2, 1, ["test_rows.py"], tmp_path, "--quick", which="cpu3", network=network) > 25
