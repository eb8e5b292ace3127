"""Functions whose code is changed in place, as IPython's %autoreload does: ranks never run the
code from before.
"""

import importlib
import sys
import textwrap
from types import FunctionType

import numpy as np
import pytest

import synknumba as synk
from synknumba._source import reached

ROWS = np.arange(101.0)

MODULE = """
def scale():
    return 2.0

class Model:
    def apply(self, x):
        return 2.0 * x

    @staticmethod
    def fixed(x):
        return 2.0 * x

def total(x):
    return scale() * x.sum()

def unused(x):
    return 2.0
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "edited_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("edited_module")
    del sys.modules["edited_module"]


def edit(module, old="2.0", new="3.0"):
    """What autoreload does after an edit of the file: it updates the objects that there are, in
    place.
    """
    scope = {"__name__": module.__name__}
    exec(compile(textwrap.dedent(MODULE).replace(old, new), module.__file__, "exec"), scope)
    for name, value in scope.items():
        if isinstance(value, FunctionType):
            getattr(module, name).__code__ = value.__code__
    for name in ("apply", "fixed"):
        getattr(module.Model, name).__code__ = getattr(scope["Model"], name).__code__


REASON = r"edited_module\.py:\d+\).* was changed in place.*Call close\(\) and fork\(\) again"


def check_changes(module, function, *arguments):
    """The function gives twice the sum; then an error, in this world, and in the next one three
    times the sum.
    """
    with synk.fork(2, device="cpu"):
        assert function(ROWS, *arguments) == function(ROWS, *arguments) == 2.0 * ROWS.sum()
        edit(module)
        for _ in range(2):
            with pytest.raises(synk.WorldError, match=REASON):
                function(ROWS, *arguments)
        with pytest.raises(synk.WorldError, match=REASON):
            function.as_serial(ROWS, *arguments)
    with synk.fork(2, device="cpu"):
        assert function(ROWS, *arguments) == function(ROWS, *arguments) == 3.0 * ROWS.sum()


def test_the_function_itself(module):
    check_changes(module, synk.function(module.total, outputs="sum"))


def test_a_function_that_it_calls(module):
    scale = module.scale
    check_changes(module, synk.function(lambda x: scale() * x.sum(), outputs="sum"))


def test_a_function_that_it_calls_by_its_module(module):
    check_changes(module, synk.function(lambda x: module.scale() * x.sum(), outputs="sum"))


def test_a_method_of_a_class_that_it_uses(module):
    model = module.Model()
    check_changes(module, synk.function(lambda x: model.apply(x).sum(), outputs="sum"))


def test_a_static_method(module):
    check_changes(module, synk.function(lambda x: module.Model.fixed(x).sum(), outputs="sum"))


def test_a_class_of_an_argument(module):
    check_changes(
        module, synk.function(lambda x, model: model.apply(x).sum(), outputs="sum"), module.Model()
    )


def test_a_function_that_is_an_argument(module):
    check_changes(
        module, synk.function(lambda x, scale: scale() * x.sum(), outputs="sum"), module.scale
    )


def test_an_edit_between_the_fork_and_the_first_call(module):
    scale = module.scale
    function = synk.function(lambda x: scale() * x.sum(), outputs="sum")
    with synk.fork(2, device="cpu"):
        edit(module)
        with pytest.raises(synk.WorldError, match=REASON):
            function(ROWS)
        again = synk.function(lambda x: scale() * x.sum(), outputs="sum")
        with pytest.raises(synk.WorldError, match=REASON):
            again(ROWS)
    with synk.fork(2, device="cpu"):
        assert function(ROWS) == again(ROWS) == 3.0 * ROWS.sum()


def test_an_edit_of_what_is_not_used(module):
    function = synk.function(lambda x: x.sum(), outputs="sum")
    with synk.fork(2, device="cpu"):
        assert function(ROWS) == ROWS.sum()
        edit(module)
        assert function(ROWS) == ROWS.sum()


def test_a_class_of_the_script_that_is_changed_between_calls():
    class Model:  # sent by value: cloudpickle updates the class on the ranks
        def apply(self, x):
            return 2.0 * x

    function = synk.function(lambda x, model: model.apply(x).sum(), outputs="sum")
    with synk.fork(2, device="cpu"):
        assert function(ROWS, Model()) == 2.0 * ROWS.sum()
        Model.apply = lambda self, x: 3.0 * x
        assert function(ROWS, Model()) == 3.0 * ROWS.sum()


def test_other_parameters_after_a_change(module):
    function = synk.function(module.total, outputs="sum")
    with synk.fork(2, device="cpu"):
        assert function(ROWS) == 2.0 * ROWS.sum()
    edit(module, "def total(x):", "def total(x, factor):")
    with synk.fork(2, device="cpu"):
        assert function(ROWS, 2) == 2.0 * ROWS.sum()
        with pytest.raises(synk.ArgumentError, match="factor"):
            function(ROWS)


ANYTHING = """
class Anything:
    __slots__ = ()

    def __getattr__(self, name):
        return __name__ if name == "__module__" else self

library = Anything()
"""


def test_a_module_with_an_object_that_has_any_attribute(tmp_path, monkeypatch):
    """As llvmlite has for its library; a package that is found by PYTHONPATH counts as the
    script's.
    """
    (tmp_path / "module_of_anything.py").write_text(ANYTHING)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("module_of_anything")
    try:
        assert module.library.__dict__ is module.library
        with synk.fork(1, device="cpu") as world:
            assert world.world_size == 1
    finally:
        del sys.modules["module_of_anything"]


def test_what_pip_has_put_into_a_folder_is_not_the_scripts(tmp_path, monkeypatch):
    """As by `pip install --target`, on the path of Python, which may have more than texts."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "path", [b"/no_text", object(), *sys.path])
    record = tmp_path / "wave-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("wave/__init__.py,sha256=x,12\nwave_tools.py,,\n")
    files = {"wave/deep/solver.py": False, "wave_tools.py": False, "waves.py": True}
    for name, own in files.items():
        assert reached.is_the_scripts(str(tmp_path / name)) == own
    assert reached.is_the_scripts(__file__)
