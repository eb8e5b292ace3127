"""A plugin of pytest that runs a program's tests for GPUs on CPU cores:
`pytest -p synknumba.simt.pytest`.

The whole run is inside `simt.as_cuda()`, from before the first conftest.py is imported;
`--simt-check` puts every launch under `simt.check`. The program and its tests need no change.
"""

import argparse
import contextlib

import pytest

from synknumba.simt._standins.replace import as_cuda

_ENTERED = pytest.StashKey[contextlib.ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option `--simt-check`."""
    group = parser.getgroup("simt", "Numba CUDA kernels on CPU cores")
    group.addoption(
        "--simt-check",
        action="store_true",
        help="look for races, indices out of bounds and the like in each launch",
    )


def _enter(config: pytest.Config, options: argparse.Namespace) -> None:
    if _ENTERED not in config.stash:
        config.stash[_ENTERED] = contextlib.ExitStack()
        config.stash[_ENTERED].enter_context(as_cuda(check=options.simt_check))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Replaces `numba.cuda` before a conftest.py asks it for a GPU."""
    _enter(early_config, early_config.known_args_namespace)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Replaces `numba.cuda` where a conftest.py has named the plugin."""
    _enter(config, config.option)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Puts `numba.cuda` back."""
    config.stash[_ENTERED].close()


def pytest_report_header(config: pytest.Config) -> str:
    """Says where kernels run."""
    if config.option.simt_check:
        return "simt: CUDA kernels run on CPU cores, checked"
    return "simt: CUDA kernels run on CPU cores"
