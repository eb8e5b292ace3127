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
from types import FunctionType
from typing import Any, Final, final

from numba.core import datamodel, imputils
from numba.core.registry import cpu_target
from numba.core.typing import templates
from numba.core.typing.typeof import typeof_impl
from numba.extending import intrinsic, overload_attribute, overload_method

from synknumba.simt._emit.options import Options
from synknumba.simt._emit.overloads import translated

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
        found = getattr(sys.modules.get(module), name, None)
        if found is not None:
            yield found


def is_of_program(value: Any) -> bool:
    """Returns whether a function, a class, an instance or a type is the program's own, not one
    of Numba's or Python's.
    """
    if not isinstance(value, (type, FunctionType)) and not hasattr(value, "__qualname__"):
        value = type(value)
    module = str(getattr(value, "__module__", "builtins"))
    is_of_numba = module.partition(".")[0] in {"numba", "numba_cuda"} and ".tests." not in module
    return not is_of_numba and module.partition(".")[0] not in sys.stdlib_module_names | {
        "numpy",
        "None",
    }


@final
class CudaExtensions:
    """The registrations that have been taken over."""

    def __init__(self) -> None:
        self._typing = templates.Registry()
        self._lowering = imputils.Registry("synknumba")
        self._seen: dict[int, int] = {}  # how many of each list have been looked at
        self._members: set[tuple[Any, str]] = set()

    def adopt(self) -> bool:
        """Takes over what has been registered since the last call; returns whether that is
        anything.
        """
        if not (
            self._take_models() + self._take_typeof() + self._take_typing() + self._take_lowering()
        ):
            return False
        # Numba puts the code of intrinsics into the first registry of a context, and only looks at
        # its own again.
        cpu_target.target_context.refresh()
        cpu_target.typing_context.install_registry(self._typing)
        cpu_target.target_context.install_registry(self._lowering)
        return True

    def _new(self, registered: list[Any]) -> list[Any]:
        """Returns what has been added to a list since the last call."""
        first = self._seen.get(id(registered), 0)
        self._seen[id(registered)] = len(registered)
        return registered[first:]

    def _take_models(self) -> int:
        taken = 0
        for manager in _objects(_MODELS):
            for kind, model in list(manager._handlers.items()):  # noqa: SLF001  # Numba has no public list
                if is_of_program(kind) and kind not in datamodel.default_manager._handlers:  # noqa: SLF001
                    datamodel.default_manager.register(kind, model)
                    taken += 1
        return taken

    def _take_typeof(self) -> int:
        taken = 0
        for registered in _objects((_TYPEOF,)):
            for kind, function in list(registered.registry.items()):
                if (
                    registered is not typeof_impl
                    and is_of_program(function)
                    and kind not in typeof_impl.registry
                ):
                    typeof_impl.register(kind, function)
                    taken += 1
        return taken

    def _take_typing(self) -> int:
        taken = 0
        for registry in _objects(_TYPING):
            is_core = registry is templates.builtin_registry
            new = self._new(registry.functions)
            functions = [one for one in new if not is_core and self._is_classic(one)]
            new = self._new(registry.attributes)
            attributes = [one for one in new if not is_core and self._is_classic(one)]
            members = [one for one in new if self._is_member(one, is_core=is_core)]
            new = self._new(registry.globals)
            values = [
                pair
                for pair in new
                if not is_core and is_of_program(pair[0]) and self._is_classic_global(pair[1])
            ]
            values = [
                pair
                for pair in values
                if cpu_target.typing_context._lookup_global(pair[0]) is None  # noqa: SLF001
            ]
            self._typing.functions += functions
            self._typing.attributes += attributes
            self._typing.globals += values
            for member in members:
                _overload_member(member)
            taken += len(functions) + len(attributes) + len(values) + len(members)
        return taken

    @staticmethod
    def _is_classic(template: Any) -> bool:
        """Returns whether a template is the program's and no overload's."""
        if hasattr(template, "_overload_func") or hasattr(template, "_definition_func"):
            return False
        return is_of_program(template) or is_of_program(getattr(template, "key", None))

    def _is_classic_global(self, kind: Any) -> bool:
        return all(
            not hasattr(one, "_overload_func") and not hasattr(one, "_definition_func")
            for one in _templates(kind)
        )

    def _is_member(self, template: Any, *, is_core: bool) -> bool:
        """Returns whether a template is of a method or attribute that the CPU has not."""
        chooser = getattr(template, "_overload_func", None)
        if chooser is None or not is_of_program(chooser):
            return False
        target = str(getattr(template, "metadata", {}).get("target") or "generic").lower()
        key = template.key, template._attr  # noqa: SLF001
        if (
            target not in {"cuda", "gpu"}
            or (is_core and target == "generic")
            or key in self._members
        ):
            return False
        self._members.add(key)
        return not any(
            getattr(one, "_attr", None) == template._attr  # noqa: SLF001
            and one.key == template.key
            and not _is_for_gpus(one)
            for one in templates.builtin_registry.attributes
        )

    def _take_lowering(self) -> int:
        taken = 0
        for registry in _objects(_LOWERING):
            for name in _LISTS:
                mine = [
                    entry
                    for entry in self._new(getattr(registry, name))
                    if _is_programs_lowering(entry)
                ]
                getattr(self._lowering, name).extend(mine)
                taken += len(mine)
        return taken


def _templates(kind: Any) -> Any:
    return getattr(kind, "templates", ())


def _is_for_gpus(template: Any) -> bool:
    return str(getattr(template, "metadata", {}).get("target")).lower() in {"cuda", "gpu"}


def _is_programs_lowering(entry: tuple[Any, ...]) -> bool:
    """Returns whether an implementation, or what it is for, is the program's."""
    for part in entry:
        parts = part if isinstance(part, tuple) else (part,)
        for one in parts:
            if one is not None and not isinstance(one, str) and is_of_program(one):
                return True
            cells = getattr(one, "__closure__", None) or ()
            if any(
                isinstance(cell.cell_contents, FunctionType) and is_of_program(cell.cell_contents)
                for cell in cells
            ):
                return True
    return False


def _overload_member(template: Any) -> None:
    """Registers a method or attribute for the CPU, with the translated function of its overload
    for GPUs.
    """
    chooser = template._overload_func  # noqa: SLF001

    def choose(*args: Any, **keywords: Any) -> Any:
        found = chooser(*args, **keywords)
        return (
            None
            if found is None
            else translated(found, Options(), f"{template._attr}, whose overload", with_place=False)  # noqa: SLF001
        )

    choose.__name__ = chooser.__name__
    choose.__signature__ = inspect.signature(chooser)  # type: ignore[attr-defined]  # Numba folds arguments by it
    is_method = getattr(template, "is_method", False)
    decorate: Callable[..., Any] = overload_method if is_method else overload_attribute
    decorate(template.key, template._attr, jit_options=Options().flags(), strict=False)(choose)  # noqa: SLF001


EXTENSIONS: Final = CudaExtensions()

_intrinsics: dict[Any, Any] = {}


def is_intrinsic(value: Any) -> bool:
    """Returns whether this is an intrinsic of numba-cuda, which has a class of its own for them,
    or one of Numba's for GPUs.
    """
    is_for_gpus = str(value._ctor_kwargs.get("target")).lower() in {"cuda", "gpu"}  # noqa: SLF001
    return is_for_gpus or type(value).__module__.startswith("numba.cuda.")


def of_the_cpu(value: Any) -> Any:
    """Returns Numba's intrinsic with the definition of one of numba-cuda's."""
    if value not in _intrinsics:
        _intrinsics[value] = intrinsic(prefer_literal=value._prefer_literal)(value._defn)  # noqa: SLF001
    return _intrinsics[value]
