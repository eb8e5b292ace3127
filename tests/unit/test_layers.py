"""Private parts of `numba.cuda` are used by `simt` and the drivers of compilers alone;
import-linter does not see in there.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import synknumba

PACKAGE = Path(synknumba.__file__).parent
ALLOWED = ("_device/compilers/", "simt/")
SOURCES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not str(path.relative_to(PACKAGE)).startswith(ALLOWED)
]

# Modules below `numba.cuda` and `numba_cuda_mlir`, and NVIDIA's own packages.
PRIVATE = re.compile(r"(numba\.cuda|numba_cuda|numba_cuda_mlir|cuda)\.\w[\w.]*")
MODULES = {
    "cudadrv",
    "core",
    "codegen",
    "compiler",
    "descriptor",
    "dispatcher",
    "memory_management",
    "simulator",
    "typing",
}
# members of theirs
DISPATCHERS = {
    "targetoptions",
    "add_overload",
    "inspect_llvm",
    "launch_config_sensitive",
}


def private_parts(text: str) -> Iterator[str]:
    """What a module's source uses of `numba.cuda` that is not public."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names if PRIVATE.fullmatch(one.name))
            case ast.ImportFrom(module=str(module)) if PRIVATE.fullmatch(module):
                yield module
            case ast.ImportFrom(module="numba.cuda" | "cuda" as module, names=names):
                yield from (
                    f"{module}.{one.name}"
                    for one in names
                    if one.name in MODULES or one.name.startswith("_")
                )
            case ast.Attribute(value=ast.Name(id="cuda") | ast.Attribute(attr="cuda"), attr=attr):
                if attr in MODULES or attr.startswith("_"):
                    yield ast.unparse(node)
            case ast.Attribute(attr=attr) if attr in DISPATCHERS:
                yield ast.unparse(node)
            case ast.Constant(value=str(value)) if PRIVATE.fullmatch(value) or value in DISPATCHERS:
                yield value  # of import_module, sys.modules, getattr


def test_there_are_modules_to_look_at() -> None:
    assert len(SOURCES) > 80
    found = {
        path.name: list(private_parts(path.read_text()))
        for path in (PACKAGE / "_device" / "compilers").glob("*.py")
    }
    assert {"numba.cuda.cudadrv.driver", "numba.cuda.core", "cuda.pathfinder"} <= {
        *found["numba_cuda_cache.py"]
    }


def test_only_its_driver_uses_private_parts_of_a_compiler() -> None:
    used = {str(path.relative_to(PACKAGE)): [*private_parts(path.read_text())] for path in SOURCES}
    assert {path: parts for path, parts in used.items() if parts} == {}


@pytest.mark.parametrize(
    "text",
    [
        "import numba.cuda.cudadrv.driver",
        "from numba.cuda.core import config",
        "from numba.cuda import dispatcher",
        "from cuda.pathfinder import load_nvidia_dynamic_lib",
        "from numba import cuda\ncuda.cudadrv.driver.get_version()",
        "import numba\nnumba.cuda._something",
        'import importlib\nimportlib.import_module("numba.cuda.typing.templates")',
        "def options(kernel):\n    return kernel.targetoptions",
        'def options(kernel):\n    return getattr(kernel, "targetoptions")',
    ],
)
def test_private_parts_are_seen(text: str) -> None:
    assert list(private_parts(text))


@pytest.mark.parametrize(
    "text",
    [
        "from numba import cuda\ncuda.jit(device=True)",
        "from numba.cuda import jit",
        "x = 'numba.cuda'",
    ],
)
def test_the_dialect_is_public(text: str) -> None:
    assert not list(private_parts(text))
