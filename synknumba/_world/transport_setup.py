"""Sets up the transport of collectives on first use.

NCCL initialisation is collective: every rank takes part. So the coordinator first checks that the
transport works on all ranks. The host transport needs no set-up.

    coordinator                              ranks
    -----------                              -----
    sends Invite(transport)             →    problem() on every rank, make_unique_id() on rank 0
    reads the id and the problems       ←    Invitation(unique_id, problem)
    sends Join(transport, unique_id)    →    open(rank, world_size, unique_id, stream) on every rank
"""

import math
import warnings

from synknumba._comm import DRIVERS
from synknumba._errors import DeviceError, RankError, depth_of_script
from synknumba._wire.messages import Invitation, Invite, Join
from synknumba._world.engine import Engine
from synknumba._world.failure import CallInfo
from synknumba._world.rounds import START_SECONDS


def join(world: Engine) -> None:
    """Sets up the world's transport; falls back to "host", with a warning, if it cannot be set up
    and the user chose "auto".

    Call between `Engine.begin` and `Engine.end`.

    Raises:
        DeviceError: the user requested the transport, and it cannot be set up.
    """
    if world.life.joined or world.world_size == 1 or DRIVERS[world.transport].in_shared_memory:
        return
    problem = _set_up(world)
    if problem is None:
        world.life.joined = True
        return
    if not world.setup.transport_is_free:
        raise DeviceError(
            f'transport="{world.transport}" cannot be set up: {problem}. Use '
            f'transport="auto" or "host".'
        )
    name = world.transport.upper()
    world.life.transport = "host"  # before the warning, which may be an error
    message = f"collectives go over the host, which is slower: {name} cannot be set up: {problem}"
    warnings.warn(message, RuntimeWarning, stacklevel=depth_of_script())


def _set_up(world: Engine) -> str | None:
    """Sets up the transport on all ranks. Returns None on success, else the reason in one line.

    Raises:
        CallTimeout: some ranks wait for ever for others, as when set-up fails on one rank only.
    """
    info = CallInfo(f"setting up {world.transport.upper()}", is_call=False)
    ranks, allowed = world.ranks, world.ranks.timeout
    if allowed == math.inf:
        ranks.timeout = START_SECONDS
    try:
        news = world.command(Invite(world.transport), info=info)
        invitations = [item for _, item, _ in news if isinstance(item, Invitation)]
        for invitation in invitations:
            if invitation.problem is not None:
                return invitation.problem
        (unique_id,) = (item.unique_id for item in invitations if item.unique_id)
        world.command(Join(world.transport, unique_id), info=info)
    except RankError as error:
        return error.failures[0].message
    finally:
        ranks.timeout = allowed
    return None
