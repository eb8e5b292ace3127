"""Fixtures of several files."""

import pytest

import synknumba as synk


@pytest.fixture
def no_world():
    """No open world; the module's, if it was made, is over."""
    synk.close()
    yield
    synk.close()
