"""Makes the transport between the ranks ready when it is first wanted: one between GPUs is set up by all of them together."""

import logging

from synknumba._comm import DRIVERS
from synknumba._errors import DeviceError, RankError
from synknumba._wire.messages import Invitation, Invite, Join
from synknumba._world.failure import CallInfo
from synknumba._world.rounds import START_SECONDS
from synknumba._world.world import World

_log = logging.getLogger("synknumba")


def join(world: World) -> None:
    """Makes the world's transport ready, or another that was not ruled out. Between `begin` and `end`.

    Raises:
        DeviceError: the transport was asked for and cannot be set up.
    """
    if world.joined or world.world_size == 1 or DRIVERS[world.transport].in_shared_memory:
        return
    problem = _set_up(world)
    if problem is None:
        world.joined = True
        return
    if not world.transport_is_free:
        raise DeviceError(f'transport="{world.transport}" cannot be set up: {problem}. Use transport="auto" or "host".')
    _log.warning("collectives go over the host: %s cannot be set up: %s", world.transport.upper(), problem)
    world.transport = "host"


def _set_up(world: World) -> str | None:
    """Sets the transport up on all ranks; says why not.

    Raises:
        CallTimeout: the ranks wait for each other for ever, as they do where it fails on one of them alone.
    """
    info = CallInfo(f"setting up {world.transport.upper()}", is_call=False)
    allowed, world.timeout = world.timeout, world.timeout or START_SECONDS
    try:
        told = [item for _, item, _ in world.command(Invite(world.transport), info=info) if isinstance(item, Invitation)]
        problems = [one.problem for one in told if one.problem is not None]
        if not problems:
            world.command(Join(world.transport, next(one.unique_id for one in told if one.unique_id)), info=info)
    except RankError as error:
        return error.failures[0].message
    finally:
        world.timeout = allowed
    return problems[0] if problems else None
