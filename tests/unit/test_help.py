"""What `help()` shows: the map of the package, and the docstring of every public name."""

import inspect
import pkgutil
import re
from collections.abc import Callable

import pytest

import synknumba as synk
from docs._site.public_names import members, public_names

WITH_EXAMPLES = (
    "synknumba",
    "synknumba.optim",
    "synknumba.train",
    "synknumba.random",
    "synknumba.plot",
)
# names whose example is elsewhere, and where
EXAMPLES = {
    "synknumba.optim.Updater": "synknumba.optim.updater",
    "synknumba.train.TrainFunction": "synknumba.train.step",
}
# whose parameters are those of `uniform`
LIKE_UNIFORM = """
    bits4 exponential normal normal2 normal32 normal4 uniform2 uniform32 uniform4
"""
# of which the docstring of the module says what they raise
SAID_BY_MODULE = ("synknumba.optim", "synknumba.random")
# results that a noun phrase describes: optimisers and their schedules
DESCRIBED = (synk.optim.Optimizer, Callable[[float], float])


def documented():
    """Returns the public names but those of the kernel library and of `simt`: these have
    references in NumPy and pages of examples, docs/simt.md and docs/simt-debugging.md.
    """
    return {
        name: item
        for name, item in public_names().items()
        if name.rpartition(".")[0] in WITH_EXAMPLES
    }


NAMES = documented()
FUNCTIONS = {name: item for name, item in NAMES.items() if inspect.isroutine(item)}


def is_error(item):
    return isinstance(item, type) and issubclass(item, Exception)


def section(item, title):
    """Returns a section of a docstring; "" if it has none."""
    _, _, text = f"\n{inspect.cleandoc(item.__doc__)}".partition(f"\n{title}:\n")
    return re.split(r"\n(?=\S)", text)[0]


def entries(text):
    """Returns the names of the entries of a section."""
    return re.findall(r"^    \*{0,2}(\w+): ", text, re.MULTILINE)


def test_names_are_there():
    assert len(NAMES) > 110
    assert len(FUNCTIONS) > 50


@pytest.mark.parametrize("module", [synk.random, synk.plot])
def test_a_star_imports_what_is_documented(module):
    assert set(module.__all__) == members(module).keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_list_parameters_results_and_errors(name):
    function, (module, _, short) = FUNCTIONS[name], name.rpartition(".")
    signature = inspect.signature(function)
    parameters = list(signature.parameters)
    if module != "synknumba.random" or short not in LIKE_UNIFORM.split():
        assert entries(section(function, "Args")) == parameters
    if parameters and module not in SAID_BY_MODULE:
        assert section(function, "Raises")
    result = signature.return_annotation
    if result is not None and result not in DESCRIBED:
        assert section(function, "Returns") or function.__doc__.startswith(("Returns", "Makes"))


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_have_an_example(name):
    """Which doctest runs, and which can be pasted; of an exception docs/errors.md has one."""
    if is_error(NAMES[name]):
        return
    shown = NAMES[EXAMPLES.get(name, name)]
    assert re.search(r">>> (import|from) synknumba\b", shown.__doc__)
    if re.search(r"^ *(>>>|\.\.\.) .*\bnp\.", shown.__doc__, re.MULTILINE):
        assert ">>> import numpy as np\n" in shown.__doc__


def test_help_of_the_package_is_a_map():
    text = inspect.getdoc(synk)
    assert len(text.splitlines()) <= 60
    lines = re.findall(r"^    (\w+(?:, \w+)*)  +\S", text, re.MULTILINE)
    shown = [name for line in lines for name in line.split(", ")]
    modules = [item.name for item in pkgutil.iter_modules(synk.__path__)]
    public = {name for name in modules if not name.startswith("_")}
    assert len(public) > 5
    assert sorted(shown) == sorted(public | members(synk).keys())
