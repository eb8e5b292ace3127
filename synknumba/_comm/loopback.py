"""Where NCCL may be reached while it sets itself up, the only moment at which it listens on a port."""

import os


def stay_on_this_machine() -> None:
    """Has NCCL use the loopback interface, which no other machine can reach; unless somebody asked for another."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
