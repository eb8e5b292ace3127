"""Critical sections that no signal handler interrupts: neither Ctrl-C nor the script's own handlers
raise inside.

    signal sent to        the kernel         Python, in the main thread
    --------------        ----------         --------------------------
    the main thread       keeps it (mask)
    another thread        delivers it   →    runs the handler: a stand-in, which records the number
                       ── the block ends ──
                          delivers it   →    runs the restored handlers for pending and recorded signals

Python runs handlers between two instructions of the main thread, whichever thread the kernel
delivers the signal to. So with a second thread in the script, as in a notebook or with NumPy's
linear algebra, a signal mask alone defers nothing. Handlers never run in other threads; there the
mask only makes the kernel deliver signals elsewhere.
"""  # noqa: E501

# The public `signal` module makes an enum of every number in a set: 168 µs for a block instead of
# 13.
import _signal  # type: ignore[import-not-found]  # of every CPython
import os
import threading
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import Any, final

_ALL = tuple(_signal.valid_signals())

# What terminals and schedulers send to every process of a job, of which the script decides what to
# do.
OF_JOBS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)

# by signal: a handler, and the one that children get
_handled_here: dict[int, tuple[Any, Any]] = {}
_mask: Any = ()  # of signals, before a fork


def in_main_thread() -> bool:
    """Returns whether this is the main thread. Unlike `threading.current_thread()`, leaves no
    record of a foreign thread.
    """
    return threading.get_ident() == threading.main_thread().ident


def is_of_handler(error: BaseException) -> bool:
    """Returns whether a handler of a signal has raised an exception, wherever it struck: its
    code is in the traceback.
    """
    codes = set(map(_code_of, map(_signal.getsignal, _ALL))) - {None}
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code not in codes:
        at = at.tb_next
    return at is not None


def _code_of(handler: Any) -> CodeType | None:
    if type(handler) is _StandIn:  # remained installed, see there
        return None
    while isinstance(handler, partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)  # of a method
    code = getattr(function, "__code__", None) or getattr(
        vars(type(handler)).get("__call__"), "__code__", None
    )
    return code if isinstance(code, CodeType) else None


def leave_to_script() -> None:
    """Does nothing on signals of jobs, in a process that ends with the script.

    Not by SIG_IGN: programs that functions start here would inherit it, and not end by
    `Popen.terminate()`. What is ignored already, as under nohup, stays so.
    """
    for number in OF_JOBS:
        if _signal.getsignal(number) is not _signal.SIG_IGN:
            handle_here(number, _do_nothing, _signal.SIG_DFL)
            _signal.siginterrupt(number, False)  # system calls of libraries go on


def handle_here(number: int, handler: Any, in_children: Any = None) -> Any:
    """Sets the handler of a signal in this process, and returns the one before, which by default
    processes forked here get.
    """
    earlier = _signal.getsignal(number)
    _signal.signal(number, handler)
    if in_children is None:
        in_children = earlier
    _handled_here[number] = handler, in_children
    return earlier


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handles a signal that the script decides about."""


def _before_fork() -> None:
    """Blocks what children handle otherwise, so that none comes to a child before it does."""
    global _mask  # noqa: PLW0603
    _mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _handled_here)


def _after_fork() -> None:
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _mask)


def _after_fork_in_child() -> None:
    for number, (handler, in_children) in _handled_here.items():
        if _signal.getsignal(number) is handler:
            # None: of a C library
            _signal.signal(number, _signal.SIG_DFL if in_children is None else in_children)
    _handled_here.clear()
    _after_fork()


@contextmanager
def held_signals() -> Iterator[None]:
    """Defers signals that arrive in the block until its end; blocks may be nested.

    An exception raised by a handler for an earlier signal leaves this function before the block
    begins or after it has ended.
    """
    global _now  # noqa: PLW0603  # a plain assignment, since no handler runs at one
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    outermost = _now is None and in_main_thread()
    stand_in = _StandIn() if outermost else None
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _ALL)
        if stand_in is not None:
            _now = stand_in
            stand_in.enter()
        yield
    finally:
        # Handlers run when a call returns or a Python function is entered, never at an assignment.
        # So an exception raised by a handler skips none of these steps.
        try:
            if stand_in is not None:
                stand_in.leave()
        finally:
            if stand_in is not None:
                stand_in.over = True
                _now = None
            try:
                _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
            finally:
                if stand_in is not None:
                    list(stand_in.again)


@final
class _StandIn:
    """Replaces all Python-level handlers during a block.

    Once the block is `over`, it calls the original handler: it may stay installed if restored
    handlers raise one after another.
    """

    def __init__(self) -> None:
        get = _signal.getsignal
        self._handlers = {number: handler for number in _ALL if callable(handler := get(number))}
        for number, handler in self._handlers.items():
            if type(handler) is _StandIn:  # remained installed after an earlier block
                self._handlers[number] = handler._handlers[number]  # noqa: SLF001  # same class
        self.replaced = list(self._handlers.items())  # those not yet restored
        self.over = False
        self._came: list[int] = []
        self._wakeup = -1
        # Raises each recorded signal again. A `map`, so that no handler runs in the middle.
        self.again: Iterator[None] = map(interrupt_main, self._came)  # type: ignore[arg-type]  # any int is accepted

    def enter(self) -> None:
        """Installs the stand-in for every handler."""
        for number in self._handlers:
            _signal.signal(number, self)
        # event loops such as asyncio's read signals there, and must see each once
        self._wakeup = _signal.set_wakeup_fd(-1)

    def leave(self) -> None:
        """Restores the handlers."""
        try:
            if self._wakeup >= 0:
                _signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        finally:
            _put_back(self.replaced)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Records a signal."""
        if self.over:
            self._handlers[number](number, frame)
        else:
            self._came.append(number)


_now: _StandIn | None = None  # the stand-in of the main thread's outermost block


def _put_back(replaced: list[tuple[int, Any]]) -> None:
    """Restores all handlers, even if handlers already restored raise."""
    try:
        while replaced:
            _signal.signal(*replaced[-1])
            replaced.pop()
    finally:
        if replaced:
            _put_back(replaced)


def _leave_child() -> None:
    """In a child forked in a block: restores the handlers and discards the recorded signals,
    which are the parent's.
    """
    global _now
    if _now is not None:
        stand_in, _now = _now, None
        stand_in.over = True
        stand_in._came.clear()  # noqa: SLF001
        stand_in.leave()


os.register_at_fork(after_in_child=_leave_child)
os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
