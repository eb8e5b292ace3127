"""Makes the transport between the ranks ready when it is first wanted: one between GPUs is set up by all of them together."""

import logging

from synknumba._errors import DeviceError, RankError
from synknumba._wire.messages import Invitation, Invite, Join
from synknumba._world.failure import CallInfo
from synknumba._world.rounds import START_SECONDS
from synknumba._world.world import World

_log = logging.getLogger("synknumba")


def join(world: World) -> None:
    """Makes the world's transport ready, or another that was not ruled out. Between `begin` and `end`.

    Raises:
        DeviceError: "nccl" was asked for and cannot be set up.
    """
    if world.joined or world.transport != "nccl" or world.world_size == 1:
        return
    problem = _set_up_nccl(world)
    if problem is None:
        world.joined = True
        return
    if not world.transport_is_free:
        raise DeviceError(f'transport="nccl" cannot be set up: {problem}. Use transport="auto" or "host".')
    world.transport = "host"
    _log.warning("collectives go over the host: NCCL cannot be set up: %s", problem)


def _set_up_nccl(world: World) -> str | None:
    """Sets NCCL up on all ranks; says why not.

    Raises:
        CallTimeout: the ranks wait for each other for ever, as they do where it fails on one of them alone.
    """
    info = CallInfo("setting up NCCL", is_call=False)
    allowed, world.timeout = world.timeout, world.timeout or START_SECONDS
    try:
        told = [item for _, item, _ in world.command(Invite(), info=info) if isinstance(item, Invitation)]
        problems = [one.problem for one in told if one.problem is not None]
        if not problems:
            world.command(Join(next(one.unique_id for one in told if one.unique_id)), info=info)
    except RankError as error:
        return error.failures[0].message
    finally:
        world.timeout = allowed
    return problems[0] if problems else None
