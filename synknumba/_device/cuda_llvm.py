"""What the LLVM code of a compiled kernel tells of it."""

import re

_DECLARED = re.compile(r'^declare [^@]*@"?([^"(]+)"?\(', re.MULTILINE)
_DEFINED = re.compile(r'^define [^@]*@"?([^"(]+)"?\(', re.MULTILINE)

# LLVM's intrinsics, CUDA's mathematics and cooperative groups, Numba's own atomics: none of these prints.
_SILENT = ("llvm.", "__nv_", "cudaCG", "___numba_atomic_")


def may_print(code: str) -> bool:
    """Whether a kernel, or a function that it calls, prints; or calls what is not in the code, as in a file that is linked.

    Args:
        code: of the kernel and of the functions that it calls.
    """
    foreign = set(_DECLARED.findall(code)).difference(_DEFINED.findall(code))
    return not all(name.startswith(_SILENT) for name in foreign)
