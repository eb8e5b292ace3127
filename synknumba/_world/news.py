"""Reads what ranks send with their arrivals: news, and warnings.

ranks have arrived ──> which lines have news ──> Answer from each socket ──> News, Warned
                                            └──> the relay, for ranks of other machines
"""

from collections.abc import Sequence
from typing import TypeAlias, final

from synknumba._errors import WorldError
from synknumba._wire import channel
from synknumba._wire.messages import Answer, Failed, News, Parcel, Warned
from synknumba._wire.rank_warnings import show
from synknumba._world.failure import CallInfo
from synknumba._world.machines import OtherMachines
from synknumba._world.processes import Processes
from synknumba._world.watchdog import Watch, Watchdog

RankNews: TypeAlias = tuple[int, News, list[int]]  # rank, its news, descriptors
RankParcel: TypeAlias = tuple[int, Parcel, list[int]]  # rank, its news still packed, descriptors


@final
class NewsReader:
    """Reads the ranks' answers, and collects their warnings until they are shown.

    Args:
        processes: processes of the ranks, with their sockets.
        watchdog: ends the ranks if one of them turns out to have died.
        others: the ranks of other machines; None if there are none.

    Attributes:
        warned: warnings that have not been shown yet.
    """

    def __init__(
        self, processes: Processes, watchdog: Watchdog, others: OtherMachines | None
    ) -> None:
        self._processes = processes
        self._watchdog = watchdog
        self._others = others
        self.warned: list[Warned] = []

    def read(self, lines: Sequence[int], info: CallInfo, watch: Watch) -> list[RankNews]:
        """Returns the news of ranks; ends the world if a rank of another machine has died.

        Args:
            lines: lines of the control block that have news.
            info: description of the call for messages.
            watch: called repeatedly during the wait.
        """
        out: list[RankNews] = []
        try:
            for line in lines:
                if self._others is not None and line == self._others.line:
                    out += self._read_others(self._others, info, watch)
                    continue
                answer, descriptors = self.receive(line, info, watch)
                if answer.news is not None:
                    out.append(_opened(answer.rank, answer.news, descriptors))
        except BaseException:
            for _, _, descriptors in out:
                channel.close_all(descriptors)
            raise
        return out

    def _read_others(self, machines: OtherMachines, info: CallInfo, watch: Watch) -> list[RankNews]:
        parcels, warned, lost = machines.read(watch)
        self.warned += warned
        if lost is not None:
            self._watchdog.end(lost.reason, lost.death, info, (lost.stack, lost.stderr))
        return [_opened(*parcel) for parcel in parcels]

    def read_parcels(self, lines: Sequence[int], info: CallInfo, watch: Watch) -> list[RankParcel]:
        """Returns the news of ranks, still packed, for the coordinator on another machine."""
        parcels = []
        for line in lines:
            answer, descriptors = self.receive(line, info, watch)
            if answer.news is not None:
                parcels.append((answer.rank, answer.news, descriptors))
        return parcels

    def receive(self, line: int, info: CallInfo, watch: Watch) -> tuple[Answer, list[int]]:
        """Returns the answer of one rank, with descriptors."""
        try:
            answer, descriptors = channel.receive(self._processes.sockets[line], watch)
        except WorldError:
            raise  # CallTimeout is an OSError too
        except (EOFError, OSError):
            self._watchdog.check(info, grace=1.0)
            raise
        except Exception:
            self._watchdog.check_open(info)  # the socket may have been closed meanwhile
            raise
        self.warned += answer.warned
        return answer, descriptors

    # ---- warnings

    def show_warnings(self) -> None:
        """Issues the ranks' warnings after the round; raises one that the script's filters turn
        into an error.
        """
        show(self.take_warnings())

    def take_warnings(self) -> list[Warned]:
        """Returns the ranks' warnings that have not been shown, to be shown elsewhere."""
        collected, self.warned = self.warned, []
        return collected


def _opened(rank: int, parcel: Parcel, descriptors: list[int]) -> RankNews:
    try:
        return rank, parcel.open(), descriptors
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a user's class may raise anything when it is unpickled
        channel.close_all(descriptors)
        message = f"its result cannot be unpickled in the script: {error}"
        return rank, Failed(type(error).__qualname__, message, message, None), []
