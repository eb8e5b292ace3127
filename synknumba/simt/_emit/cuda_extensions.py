"""Types, functions and attributes that a program has registered with Numba for GPUs alone, for
kernels on a core.

numba.cuda has registries of its own, and numba-cuda a copy of each of Numba's. What the program has
added there is added to those of the CPU, where these have nothing for it: models of types,
`typeof`, typing templates, lowering. The code of such a lowering is LLVM's, and runs on any
processor unless it calls functions of the GPU. Methods and attributes by `overload_method` and
`overload_attribute` are translated as overloads of functions are.

    numba.cuda.cudadecl, numba.cuda.typing.templates     ──>  typing context of the CPU
    numba.cuda.cudaimpl, numba.cuda.core.imputils        ──>  target context of the CPU
    numba.cuda.models, numba.cuda.datamodel              ──>  numba.core.datamodel
    numba.cuda.typing.typeof                             ──>  numba.core.typing.typeof
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import filterfalse
from types import FunctionType
from typing import Any, Final, cast, final

from numba.core import datamodel, imputils
from numba.core.registry import cpu_target
from numba.core.typing import templates
from numba.core.typing.typeof import typeof_impl
from numba.extending import intrinsic, overload_attribute, overload_method

from synknumba.simt._emit.options import Options
from synknumba.simt._emit.overloads import translated
from synknumba.simt._lower.cuda_overloads import maker_of
from synknumba.simt._source.pickling import target_of

_TYPING: Final = (
    ("numba.cuda.cudadecl", "registry"),
    ("numba.cuda.typing.templates", "builtin_registry"),
    ("numba.core.typing.templates", "builtin_registry"),
)
_LOWERING: Final = (
    ("numba.cuda.cudaimpl", "registry"),
    ("numba.cuda.core.imputils", "builtin_registry"),
)
_MODELS: Final = (
    ("numba.cuda.models", "cuda_data_manager"),
    ("numba.cuda.datamodel", "default_manager"),
)
_TYPEOF: Final = ("numba.cuda.typing.typeof", "typeof_impl")
_LISTS: Final = ("functions", "getattrs", "setattrs", "casts", "constants")


def _objects(places: tuple[tuple[str, str], ...]) -> Iterator[Any]:
    """Yields the objects at these places of modules that are imported; a module that is not
    imported has no additions.
    """
    for module, name in places:
        registry = getattr(sys.modules.get(module), name, None)
        if registry is not None:
            yield registry


def _models_of(manager: Any) -> dict[Any, Any]:
    """Returns the models of a manager by type, of which Numba has no public list."""
    return cast(dict[Any, Any], manager._handlers)  # noqa: SLF001


def is_of_program(value: Any) -> bool:
    """Returns whether a function, a class, an instance or a type is the program's own, not one
    of Numba's or Python's.
    """
    if not hasattr(value, "__qualname__"):
        value = type(value)
    module = str(getattr(value, "__module__", "builtins"))
    package = module.partition(".")[0]
    if package in {"numba", "numba_cuda"}:
        return ".tests." in module
    return package not in sys.stdlib_module_names | {"numpy", "None"}


@final
class CudaExtensions:
    """The registrations that have been taken over."""

    def __init__(self) -> None:
        self._typing = templates.Registry()
        self._lowering = imputils.Registry("synknumba")
        self._lengths: dict[int, int] = {}  # how much of each list has been looked at
        self._members: set[tuple[Any, str]] = set()

    def adopt(self) -> bool:
        """Takes over what has been registered since the last call; returns whether that is
        anything.
        """
        adopted = self._adopt_models() + self._adopt_typeof()
        adopted += self._adopt_typing() + self._adopt_lowering()
        if not adopted:
            return False
        # Numba puts the code of intrinsics into the first registry of a context, and only looks at
        # its own again.
        cpu_target.target_context.refresh()
        cpu_target.typing_context.install_registry(self._typing)
        cpu_target.target_context.install_registry(self._lowering)
        return True

    def _new(self, registered: list[Any]) -> list[Any]:
        """Returns what has been added to a list since the last call."""
        first = self._lengths.get(id(registered), 0)
        self._lengths[id(registered)] = len(registered)
        return registered[first:]

    def _adopt_models(self) -> int:
        count = 0
        for manager in _objects(_MODELS):
            for kind, model in list(_models_of(manager).items()):
                if is_of_program(kind) and kind not in _models_of(datamodel.default_manager):
                    datamodel.default_manager.register(kind, model)
                    count += 1
        return count

    def _adopt_typeof(self) -> int:
        count = 0
        for dispatch in _objects((_TYPEOF,)):
            # numba.cuda may use Numba's own, to which nothing is new
            for kind, function in list(dispatch.registry.items()):
                if is_of_program(function) and kind not in typeof_impl.registry:
                    typeof_impl.register(kind, function)
                    count += 1
        return count

    def _adopt_typing(self) -> int:
        count = 0
        for registry in _objects(_TYPING):
            functions = self._new(registry.functions)
            attributes = self._new(registry.attributes)
            values = self._new(registry.globals)
            is_core = registry is templates.builtin_registry
            for template in attributes:
                if self._is_member(template):
                    _overload_member(template)
                    count += 1
            if is_core:
                continue
            functions = list(filter(_is_classic, functions))
            attributes = list(filter(_is_classic, attributes))
            values = list(filter(_is_new_global, values))
            self._typing.functions += functions
            self._typing.attributes += attributes
            self._typing.globals += values
            count += len(functions) + len(attributes) + len(values)
        return count

    def _is_member(self, template: Any) -> bool:
        """Returns whether a template is of a method or attribute that the CPU has not."""
        chooser = maker_of(template)
        if chooser is None or not is_of_program(chooser):
            return False
        member = _member_of(template)
        if member in self._members or not _is_for_gpus(template):
            return False
        self._members.add(member)
        on_cpus = filterfalse(_is_for_gpus, templates.builtin_registry.attributes)
        return member not in map(_member_of, on_cpus)

    def _adopt_lowering(self) -> int:
        count = 0
        for registry in _objects(_LOWERING):
            for name in _LISTS:
                entries = list(filter(_is_programs_lowering, self._new(getattr(registry, name))))
                getattr(self._lowering, name).extend(entries)
                count += len(entries)
        return count


def _is_overload(template: Any) -> bool:
    return maker_of(template) is not None or hasattr(template, "_definition_func")


def _is_classic(template: Any) -> bool:
    """Returns whether a template is the program's and no overload's."""
    if _is_overload(template):
        return False
    return is_of_program(template) or is_of_program(getattr(template, "key", None))


def _is_new_global(entry: tuple[Any, Any]) -> bool:
    """Returns whether a value, with its type, is the program's and unknown to the CPU."""
    value, kind = entry
    if not is_of_program(value) or any(map(_is_overload, getattr(kind, "templates", ()))):
        return False
    return cpu_target.typing_context._lookup_global(value) is None  # noqa: SLF001


def _member_of(template: Any) -> tuple[Any, Any]:
    """Returns the type and the name of a method or attribute."""
    return getattr(template, "key", None), getattr(template, "_attr", None)


def _is_for_gpus(template: Any) -> bool:
    return target_of(template) in {"cuda", "gpu"}


def _is_programs_lowering(entry: tuple[Any, ...]) -> bool:
    """Returns whether an implementation, or what it is for, is the program's."""
    for item in entry:
        parts = item if isinstance(item, tuple) else (item,)
        for part in parts:
            if isinstance(part, str | None):
                continue
            if is_of_program(part):
                return True
            cells = getattr(part, "__closure__", None) or ()
            inner = (cell.cell_contents for cell in cells)
            if any(isinstance(value, FunctionType) and is_of_program(value) for value in inner):
                return True
    return False


def _overload_member(template: Any) -> None:
    """Registers a method or attribute for the CPU, with the translated function of its overload
    for GPUs.
    """
    chooser = maker_of(template)
    kind, name = _member_of(template)

    def choose(*args: Any, **keywords: Any) -> Any:
        implementation = chooser(*args, **keywords)
        if implementation is None:
            return None
        return translated(implementation, Options(), f"{name}, whose overload", with_place=False)

    choose.__name__ = chooser.__name__
    choose.__signature__ = inspect.signature(chooser)  # type: ignore[attr-defined]  # Numba folds arguments by it
    is_method = getattr(template, "is_method", False)
    decorate: Callable[..., Any] = overload_method if is_method else overload_attribute
    decorate(kind, name, jit_options=Options().flags(), strict=False)(choose)


EXTENSIONS: Final = CudaExtensions()

_intrinsics: dict[Any, Any] = {}


def for_the_cpu(value: Any) -> Any:
    """Returns Numba's intrinsic with the definition of one of numba-cuda's, which has a class of
    its own for them, or of one of Numba's for GPUs; any other as it is.
    """
    is_for_gpus = str(value._ctor_kwargs.get("target")).lower() in {"cuda", "gpu"}  # noqa: SLF001
    if not is_for_gpus and not type(value).__module__.startswith("numba.cuda."):
        return value
    if value not in _intrinsics:
        _intrinsics[value] = intrinsic(prefer_literal=value._prefer_literal)(value._defn)  # noqa: SLF001
    return _intrinsics[value]
