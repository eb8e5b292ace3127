"""Which Python packages for GPUs are installed, by their metadata, and what to install."""

import sys
from importlib import metadata

CUPY_BY_EXTRA = {"cuda12": "cupy-cuda12x", "cuda13": "cupy-cuda13x"}


def version_of(distribution: str) -> str | None:
    """Returns the version of an installed distribution; None if it is not installed."""
    paths = [path for path in sys.path if isinstance(path, str)]  # imports ignore the others
    distributions = metadata.distributions(name=distribution, path=paths)
    return next((installed.version for installed in distributions), None)


def matching_extra() -> str | None:
    """Returns the extra for the installed CuPy, "cuda12" or "cuda13"; None without its wheels."""
    for extra, cupy in CUPY_BY_EXTRA.items():
        if version_of(cupy) is not None:
            return extra
    return None


def install_extra(driver_major: int | None = None) -> str:
    """Returns the command that installs what GPUs need, for CuPy's CUDA, else the driver's."""
    extra = matching_extra()
    if extra is None and driver_major is not None:
        extra = "cuda13" if driver_major >= 13 else "cuda12"
    if not extra:
        return "pip install 'synknumba[cuda13]' (or [cuda12])"
    return f"pip install 'synknumba[{extra}]'"


def install_nccl() -> str:
    """Returns the command that installs NCCL for the installed CuPy."""
    extra = matching_extra()
    if extra is None:
        return "pip install nvidia-nccl-cu13 (or nvidia-nccl-cu12, to match your CuPy)"
    return f"pip install nvidia-nccl-cu{extra.removeprefix('cuda')}"
