"""Which world of this process is open, and how the last one ended; a process has one at a time."""

from typing import Generic, TypeVar, final

from synknumba._errors import SynkError, WorldError
from synknumba._host import this_process

_W = TypeVar("_W")


@final
class OpenWorld(Generic[_W]):
    """The place of the one world."""

    def __init__(self) -> None:
        self._world: _W | None = None
        self._untold: SynkError | None = None  # how it ended, if no call has said so
        self._reason: str | None = None  # why the last one was closed, if it was not the script that closed it

    def enter(self, world: _W) -> None:
        """The world is open from now on."""
        self._untold = None
        self._world = world

    def leave(self, world: _W, reason: str | None) -> None:
        """The world has ended."""
        if self._world is world:
            self._world, self._reason = None, reason

    def clear(self) -> None:
        """In a process that the script has forked: it has no ranks."""
        self._world = None

    def keep(self, error: SynkError) -> None:
        """Keeps what ended the world while nobody was there to hear it: the next call says it."""
        self._untold = error

    def raise_untold(self) -> None:
        """Raises what ended the last world, if no call has done so yet."""
        if self._untold is not None:
            error, self._untold = self._untold, None
            raise error

    def get(self) -> _W | None:
        """The open world, or None."""
        return self._world

    def current(self) -> _W:
        """The open world.

        Raises:
            WorldError: there is none, or this process is a rank.
        """
        if self._world is not None:
            return self._world
        rank = this_process.current_rank()
        if rank is not None:
            message = f"this is rank {rank}, and only the coordinator makes calls. Call the plain function here (f.py_func)."
            raise WorldError(message)
        self.raise_untold()
        if self._reason is not None:
            message = f"there is no world any more: {self._reason}. Call synknumba.fork() to start a new one."
        else:
            message = "there is no world: call synknumba.fork() first (it starts one process per GPU, or per CPU core)"
        raise WorldError(message)
