"""Shortages of memory on a rank, and of descriptors while ranks start, are errors that name
them.
"""


def test_a_rank_that_has_no_memory_left_to_pickle_its_error(start):
    """It frees a reserve for that, and has one again for the next error."""
    script = start("""
        import contextlib
        import resource

        kept = []

        @synk.function(outputs=None)
        def keep_all_there_is(x):
            with open("/proc/self/statm") as statm:
                used = int(statm.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 16), resource.RLIM_INFINITY))
            for size in (1024, 64):  # of the C library's memory and of Python's own
                with contextlib.suppress(MemoryError):
                    while True:
                        kept.append(bytearray(size))
            raise MemoryError

        @synk.function(outputs=None)
        def let_go(x):
            kept.clear()

        with synk.fork(2, device="cpu") as world:
            for _ in range(3):
                try:
                    keep_all_there_is(ROWS)
                except synk.RankError as error:
                    say(error.failures[0].type_name, [one.rank for one in error.failures])
                for pid in world.pids:  # from outside: the call that follows needs memory itself
                    resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                let_go(ROWS)
                assert total(ROWS) == ROWS.sum()
    """)  # noqa: E501
    for _ in range(3):
        # the second where CPython 3.11 has no memory for a frame
        script.expect(r"(MemoryError|SystemError) \[0, 1\]")
    script.finish()
    assert script.errors == ""


def test_too_few_descriptors_to_start_ranks(start):
    """Wherever the limit is reached, in the script or on a rank."""
    script = start("""
        import resource
        most = max(int(name) for name in os.listdir("/proc/self/fd"))

        def forked():  # a hard limit cannot be raised again, so in a child
            try:
                with synk.fork(2, device="cpu"):
                    say("started")
            except (OSError, synk.SynkError) as error:
                say(type(error).__name__, " ".join(str(error).split()))

        for more in range(4, 24):
            child = os.fork()
            if child == 0:
                resource.setrlimit(resource.RLIMIT_NOFILE, (most + more, most + more))
                forked()
                os._exit(0)
            os.waitpid(child, 0)
        say("end")
    """)
    script.expect("end")
    told = script.printed[:-1]
    assert len(told) == 20
    assert told[-1] == "started"
    failed = [line for line in told if line != "started"]
    assert {line.split()[0] for line in failed} <= {"OSError", "WorldError", "SharedMemoryError"}
    assert [line for line in failed if "ulimit -n" not in line] == []
    assert any(
        "could not be started: the limit of open files is reached" in line for line in failed
    )
    script.finish()
    assert script.errors == ""


def test_a_limit_of_file_sizes(start):
    script = start("""
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        for _ in range(2):
            try:
                synk.data(ROWS)
            except synk.SharedMemoryError as error:
                say(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with synk.fork(2, device="cpu"):
            assert total(synk.data(ROWS)) == ROWS.sum()
    """)
    for _ in range(2):
        script.expect(
            r"cannot allocate [\d,]+ bytes of shared memory: .*File too large\. The limit of "
            r"file sizes \(`ulimit -f`\).*"
        )
    script.finish()


def test_a_rank_without_memory_to_start_does_not_run_on_in_the_script(start):
    """Wherever the limit is reached, in the script or on a rank."""
    script = start("""
        import resource

        def forked(more):  # in a child, which ends with its limit
            with open("/proc/self/statm") as statm:
                used = int(statm.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))
            try:
                with synk.fork(2, device="cpu"):
                    pass
            except (OSError, MemoryError, synk.SynkError):
                pass

        with synk.fork(2, device="cpu"):
            assert total(ROWS) == ROWS.sum()
        for kib in range(0, 1024, 64):
            child = os.fork()
            if child == 0:
                forked(kib << 10)
                os.write(1, b"after ")  # once in each child
                os._exit(0)
            os.waitpid(child, 0)
        say("end")
    """)
    script.expect("^(after ){16}end$")
    script.finish()
