"""A function as it is written: its definition, file and lines; and what refuses a construct, with
its place.
"""

import ast
import inspect
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from synknumba._errors import KernelError


def by_position(args: ast.arguments) -> list[ast.arg]:
    """Returns the parameters that an argument by position can set."""
    return [*args.posonlyargs, *args.args]


def names_by_position(args: ast.arguments) -> tuple[str, ...]:
    """Returns the names of these parameters."""
    return tuple(arg.arg for arg in by_position(args))


IN_KERNELS: Final = "in kernels"


@dataclass(frozen=True, slots=True)
class Source:
    """A function and its syntax tree.

    Attributes:
        function: the plain Python function.
        tree: its definition, without decorators, annotations, defaults and docstring.
        scope: values of its global names and closure variables.
    """

    function: FunctionType
    tree: ast.FunctionDef
    scope: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The function's qualified name."""
        return self.function.__qualname__

    @property
    def filename(self) -> str:
        """The file the function was defined in."""
        return self.function.__code__.co_filename

    @property
    def params(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return names_by_position(self.tree.args)

    def at(self, node: ast.AST) -> str:
        """Returns the function with the file and line of a node."""
        return f"{self.name} ({self.filename}:{self.line(node)})"

    def line(self, node: ast.AST) -> int:
        """Returns the line of a node; of one without a place, that of the definition."""
        return getattr(node, "lineno", self.tree.lineno)

    def refusal(
        self,
        node: ast.AST,
        construct: str,
        way_out: str = "write it in another way",
        where: str = "on the CPU",
    ) -> KernelError:
        """Returns the error for an unsupported construct, with kernel, file, line, construct,
        remedy and source line.

        Args:
            node: the construct in the tree.
            construct: its name.
            way_out: what to write instead.
            where: what does not support it; `IN_KERNELS` for what GPUs refuse, too.
        """
        text = linecache.getline(self.filename, self.line(node)).strip()
        return KernelError(
            f"{self.at(node)}: {construct} is not supported {where}; {way_out}\n    {text}"
        )

    def error(self, node: ast.AST, reason: str) -> KernelError:
        """Returns the error for a mistake on every device, with kernel, file, line, reason and the
        marked source line.
        """
        marked = marked_line(self.filename, self.line(node), node)
        return KernelError(f"{self.at(node)}: {reason}\n    {marked}")


def marked_line(filename: str, line: int, node: ast.AST | None) -> str:
    """Returns a source line without its indentation, and below it marks under a node that begins
    there.
    """
    text = linecache.getline(filename, line).rstrip("\n")
    code = text.lstrip()
    if node is None or node.lineno != line:  # type: ignore[attr-defined]  # an expression or a statement
        return code
    indent, encoded = len(text) - len(code), text.encode()  # columns count bytes
    start = len(encoded[: node.col_offset].decode(errors="ignore"))  # type: ignore[attr-defined]
    stop = len(text)
    if node.end_lineno == line:  # type: ignore[attr-defined]
        stop = len(encoded[: node.end_col_offset].decode(errors="ignore"))  # type: ignore[attr-defined]
    return f"{code}\n    {' ' * (start - indent)}{'^' * max(1, stop - start)}"


# Attribute that holds the `Source` of a function lifted here, which has no source text of its own.
SOURCE: Final = "__simt_source__"


def parameters(function: FunctionType) -> tuple[str, ...]:
    """Returns the names of a function's parameters, with that of `*rest`."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount + has_rest(function)]


def has_rest(function: FunctionType) -> bool:
    """Returns whether the last parameter is one like `*rest`."""
    return bool(function.__code__.co_flags & inspect.CO_VARARGS)
