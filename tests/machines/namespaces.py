"""Machines that share nothing by accident: namespaces with a network, a host name, IPC and a
/dev/shm of their own.

A bridge joins them. Process ids and files stay shared. Needs root and `ip`, of iproute2.
"""

import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

SHM_BYTES = 1 << 30

# Runs a command on a machine.
ENTER = """#!/bin/bash
index=$1; shift
exec ip netns exec {name}-$index unshare --mount --uts --ipc -- bash -c '
    mount -t tmpfs -o size={shm} tmpfs /dev/shm && {hide} hostname machine'$index' && exec "$@"' _ "$@"
"""  # noqa: E501

# What launchers call instead of ssh: options, an address, and a command for the shell there.
REMOTE = """#!/bin/bash
while [[ $1 != 10.99.0.* ]]; do shift; done
index=$((${{1##*.}} - 1)); shift
export FI_TCP_IFACE=veth$index
exec {enter} $index bash -c "$*"
"""

# TCP for all messages.
VARIABLES = {
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": "veth0",
    "UCX_TLS": "tcp,self",
    "I_MPI_FABRICS": "ofi",
}


class Network:
    """Namespaces for machines; made on entry, removed at exit.

    Args:
        machines: how many.
        folder: for the wrapper.
        hidden: a folder that is empty on all machines but the first.
    """

    def __init__(self, machines: int, folder: Path, hidden: Path | None = None) -> None:
        self._count, self._name = machines, f"synk{os.getpid()}"
        self._enter, self._remote = folder / "enter.sh", folder / "remote.sh"
        hide = (
            ""
            if hidden is None
            else f"[[ '$index' = 0 ]] || mount -t tmpfs tmpfs {shlex.quote(str(hidden))} &&"
        )
        self._enter.write_text(ENTER.format(name=self._name, shm=SHM_BYTES, hide=hide))
        self._remote.write_text(REMOTE.format(enter=self._enter))
        for script in (self._enter, self._remote):
            script.chmod(0o755)

    def launcher(self, launcher: Sequence[str]) -> list[str]:
        """Returns the command of a launcher that runs on the first machine, and starts a process
        on each.
        """
        hosts = [f"10.99.0.{index + 1}" for index in range(self._count)]
        if "--oversubscribe" in launcher:  # Open MPI
            options = [
                "--host",
                ",".join(f"{host}:1" for host in hosts),
                "--prtemca",
                "plm_ssh_agent",
                str(self._remote),
            ]
        else:
            options = [
                "-hosts",
                ",".join(hosts),
                "-ppn",
                "1",
                "-launcher",
                "ssh",
                "-launcher-exec",
                str(self._remote),
            ]
            options += ["-iface", "veth0"]
        return [str(self._enter), "0", *launcher, *options]

    def __enter__(self) -> Self:
        bridge = f"{self._name}-br"
        try:
            _ip(
                f"netns add {bridge}",
                f"-n {bridge} link add br0 type bridge",
                f"-n {bridge} link set br0 up",
            )
            for index in range(self._count):
                name = f"{self._name}-{index}"
                _ip(
                    f"netns add {name}",
                    f"-n {name} link set lo up",
                    f"link add veth{index} netns {name} type veth peer name "
                    f"port{index} netns {bridge}",
                    f"-n {bridge} link set port{index} master br0 up",
                    f"-n {name} addr add 10.99.0.{index + 1}/24 dev veth{index}",
                    f"-n {name} link set veth{index} up",
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*map(str, range(self._count)), "br"):
            subprocess.run(
                ["ip", "netns", "del", f"{self._name}-{name}"], capture_output=True, check=False
            )

    def cut(self, machine: int) -> None:
        """Pulls the plug of a machine."""
        _ip(f"-n {self._name}-{machine} link set veth{machine} down")


def problem() -> str:
    """Returns why there can be no such machines here; "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Network(1, Path("/tmp")):
            command = [
                "unshare",
                "--mount",
                "--uts",
                "--ipc",
                "--",
                "mount",
                "-t",
                "tmpfs",
                "tmpfs",
                "/dev/shm",
            ]
            subprocess.run(command, capture_output=True, check=True, timeout=10.0)
    except FileNotFoundError as error:
        return f"{error.filename} not found"
    except subprocess.CalledProcessError as error:
        return f"{shlex.join(error.cmd)}: {error.stderr.decode().strip()}"
    return ""


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], capture_output=True, check=True, timeout=10.0)
