"""Filters by which the kernel refuses system calls of a process and its children, as sandboxes and
containers do.

refuse("memfd_create", "prlimit64")      in the process; it cannot be undone
refuse("F_SETOWN")                       fcntl with this command only
"""

import ctypes
import errno
import platform
import struct

_NUMBERS = {  # of the kernel's tables asm/unistd_64.h and asm-generic/unistd.h
    "x86_64": {
        "poll": 7,
        "fcntl": 72,
        "setpgid": 109,
        "sched_getaffinity": 204,
        "fallocate": 285,
        "prctl": 157,
        "setrlimit": 160,
        "waitid": 247,
        "sendmsg": 46,
        "socketpair": 53,
        "clone": 56,
        "pipe2": 293,
        "prlimit64": 302,
        "memfd_create": 319,
    },
    "aarch64": {
        "poll": 73,  # ppoll, by which glibc polls there
        "fcntl": 25,
        "fallocate": 47,
        "sched_getaffinity": 123,
        "setpgid": 154,
        "prctl": 167,
        "setrlimit": 164,
        "waitid": 95,
        "sendmsg": 211,
        "socketpair": 199,
        "clone": 220,
        "pipe2": 59,
        "prlimit64": 261,
        "memfd_create": 279,
    },
}
_COMMANDS = {"F_SETOWN": 8}  # of fcntl

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2  # prctl.h, seccomp.h
# bpf_common.h: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
_LOAD, _JUMP_IF_EQUAL, _RETURN = (
    0x20,
    0x15,
    0x06,
)
_NUMBER_AT, _SECOND_ARGUMENT_AT = 0, 24  # struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def missing() -> str | None:
    """Returns why filters cannot be used here; None if they can."""
    return (
        None
        if platform.machine() in _NUMBERS
        else f"the numbers of system calls on {platform.machine()} are not known here"
    )


def refuse(*calls: str, code: int = errno.EPERM) -> None:
    """Lets these system calls of this process, or commands of fcntl, fail with an error number
    from now on.
    """
    numbers = _NUMBERS[platform.machine()]
    program = b""
    for call in calls:
        answer = _instruction(_RETURN, 0, 0, _ERRNO | code)
        if call in _COMMANDS:
            answer = (
                _instruction(_LOAD, 0, 0, _SECOND_ARGUMENT_AT)
                + _instruction(_JUMP_IF_EQUAL, 0, 1, _COMMANDS[call])
                + answer
            )
        number = numbers["fcntl" if call in _COMMANDS else call]
        program += _instruction(_LOAD, 0, 0, _NUMBER_AT)
        program += _instruction(_JUMP_IF_EQUAL, 0, len(answer) // 8, number) + answer
    program += _instruction(_RETURN, 0, 0, _ALLOW)
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = ctypes.byref(_Program(len(program) // 8, program))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _MODE_FILTER, arguments
    ):
        raise OSError(ctypes.get_errno(), "the kernel does not take the filter")


def _instruction(code: int, jump_if_true: int, jump_if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, jump_if_true, jump_if_false, value)
