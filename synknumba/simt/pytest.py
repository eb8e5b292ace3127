"""A plugin of pytest that runs a program's tests for GPUs on CPU cores: `pytest -p synknumba.simt.pytest`.

The whole run is inside `simt.as_cuda()`, from before the first conftest.py is imported; `--simt-check` puts every launch under
`simt.check`. The program and its tests need no change.
"""

import contextlib

import pytest

from synknumba.simt._standins.replace import as_cuda

_entered = contextlib.ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option `--simt-check`."""
    group = parser.getgroup("simt", "Numba CUDA kernels on CPU cores")
    group.addoption(
        "--simt-check", action="store_true", help="look for races, indices out of bounds and the like in each launch"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replaces `numba.cuda` before a conftest.py asks it for a GPU."""
    _entered.enter_context(as_cuda(check=early_config.known_args_namespace.simt_check))


def pytest_unconfigure() -> None:
    """Puts `numba.cuda` back."""
    _entered.close()


def pytest_report_header(config: pytest.Config) -> str:
    """Says where kernels run."""
    return f"simt: CUDA kernels run on CPU cores{', checked' if config.known_args_namespace.simt_check else ''}"
