"""Fixtures of several files."""

import pytest

import synknumba as synk

collect_ignore = ["optax_steps.py"]  # a program: JAX starts threads, and these processes fork


@pytest.fixture
def no_world():
    """No open world; the module's, if it was made, is over."""
    synk.close()
    yield
    synk.close()
