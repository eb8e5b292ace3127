"""Loads each library that the extras for GPUs are to bring; needs no GPU.

make gpu-libraries                 in an environment of its own: 2.7 GB
make gpu-libraries EXTRAS=cuda12
"""

import sys
from importlib import metadata

LIBRARIES = (
    "cublas",
    "cufft",
    "curand",
    "cusolver",
    "cusparse",
    "nccl",
    "nvJitLink",
    "nvrtc",
    "nvvm",
)


def main() -> int:
    from cuda import pathfinder

    for name in LIBRARIES:
        print(f"{name:<12}{pathfinder.load_nvidia_dynamic_lib(name).abs_path}")
    import cupy
    from cupy.cuda import cufft, nccl
    from numba import cuda

    assert nccl.available
    assert cufft.getVersion() > 0
    print(f"{'NCCL':<12}{nccl.get_version()}")
    print(
        f"{'CuPy':<12}{cupy.__version__}, numba-cuda {metadata.version('numba-cuda')}, "
        f"{cuda.__name__} imports"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
