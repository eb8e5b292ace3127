"""Trees of nested dicts, lists and tuples: flattened into leaves and a structure, and rebuilt."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

Structure: TypeAlias = tuple[Any, ...]
"""("leaf",) | ("none",) | ("list" | "tuple", children) | ("named", class, children) | ("dict",
keys, types of keys, children).

Hashable, and pickles."""

LEAF: Structure = ("leaf",)
NONE: Structure = ("none",)


def is_nested(value: object) -> bool:
    """Returns whether a value is an inner node of a tree: a dict, list or tuple."""
    return isinstance(value, list | tuple) or _is_dict(value)


def _is_dict(value: object) -> bool:
    # SciPy's sparse matrix by keys derives from dict
    return isinstance(value, dict) and not hasattr(value, "shape")


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Returns the leaves, left to right (dicts in key order), and the structure. None is a subtree
    without leaves.

    >>> flatten(["a", ("b", None)])
    (['a', 'b'], ('list', (('leaf',), ('tuple', (('leaf',), ('none',))))))
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> Structure:
    if tree is None:
        return NONE
    if _is_dict(tree):
        children = tuple(_flatten(child, leaves) for child in tree.values())
        # The types of the keys distinguish 1, 1.0 and True, which compare equal.
        return ("dict", tuple(tree), tuple(map(type, tree)), children)
    if isinstance(tree, list | tuple):
        children = tuple(_flatten(child, leaves) for child in tree)
        if isinstance(tree, list):
            return ("list", children)
        if hasattr(tree, "_fields"):
            return ("named", type(tree), children)
        return ("tuple", children)
    leaves.append(tree)
    return LEAF


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Builds the tree with this structure and these leaves.

    >>> unflatten(flatten([1, (2,)])[1], ["x", "y"])
    ['x', ('y',)]
    """
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Any) -> Any:
    match structure:
        case ("leaf",):
            return next(leaves)
        case ("none",):
            return None
    values = [_unflatten(child, leaves) for child in structure[-1]]
    match structure:
        case ("dict", keys, _, _):
            return dict(zip(keys, values, strict=True))
        case ("named", cls, _):
            return cls(*values)
        case ("list", _):
            return values
        case _:
            return tuple(values)


def child(structure: Structure, key: Any) -> tuple[int, Structure]:
    """Returns the index of a subtree's first leaf, and its structure; may raise Key- or IndexError.

    >>> child(flatten({"a": 1, "b": [2, 3]})[1], "b")
    (1, ('list', (('leaf',), ('leaf',))))
    """
    match structure:
        case ("dict", keys, _, children):
            if key not in keys:
                raise KeyError(key)
            place = keys.index(key)
        case ("named" | "list" | "tuple", *_, children):
            place = range(len(children))[key]
        case _:
            raise KeyError(key)
    return sum(map(count_leaves, children[:place])), children[place]


def spread(prefix: Any, structure: Structure) -> list[Any] | None:
    """Broadcasts the leaves of the tree `prefix` to the leaves below them; None if it is no prefix
    of the structure.

    >>> spread(("sum", "max"), flatten((1, [2, 3]))[1])
    ['sum', 'max', 'max']
    >>> spread(("sum",), flatten((1, 2))[1]) is None
    True
    """
    if is_nested(prefix):
        return _below(prefix, structure, spread)
    return [prefix] * count_leaves(structure)


def parts_like(structure: Structure, value: Any) -> list[Any] | None:
    """Returns the parts of a value, possibly trees, at the leaves of a structure; None if the value
    does not match.

    The order of dict keys does not matter, and a list matches a tuple.

    >>> parts_like(flatten({"a": 1, "b": (2, 3)})[1], {"b": [[4, 5], 6], "a": 7})
    [7, [4, 5], 6]
    >>> parts_like(flatten((1, 2))[1], [3]) is None
    True
    """
    match structure:
        case ("leaf",):
            return [value]
        case ("none",) if value is None:
            return []
        case ("none",):
            return None
        case _:
            return _below(value, structure, lambda part, child: parts_like(child, part))


def _below(
    value: Any, structure: Structure, parts: Callable[[Any, Structure], list[Any] | None]
) -> list[Any] | None:
    """Joins what `parts` returns for each child of a value and of a structure; None if these or
    the children do not match.
    """
    match structure:
        case ("dict", keys, _, children):
            if not isinstance(value, dict) or set(value) != set(keys):
                return None
            value = [value[key] for key in keys]
        case ("named" | "list" | "tuple", *_, children):
            if not isinstance(value, list | tuple) or len(value) != len(children):
                return None
        case _:
            return None
    leaves = []
    for part, child in zip(value, children, strict=True):
        below = parts(part, child)
        if below is None:
            return None
        leaves += below
    return leaves


def unmatched(prefix: Any, structure: Structure, path: str = "") -> tuple[list[str], list[str]]:
    """Returns paths of a structure that the tree `prefix` has no leaf for, and paths of `prefix`
    that the structure lacks.

    Both are empty where one has a node of another kind, such as a dict in place of a tuple.

    >>> unmatched({"a": "sum", "b": "max"}, flatten({"a": 1, "c": 2})[1])
    (["'c'"], ["'b'"])
    >>> unmatched({"a": ("sum", "max")}, flatten({"a": (1, 2, 3)})[1])
    (["['a'][2]"], [])
    """
    match structure:
        case ("dict", keys, _, children) if isinstance(prefix, dict):
            ours, theirs = prefix, dict(zip(keys, children, strict=True))
        case ("named" | "list" | "tuple", *_, children) if isinstance(prefix, list | tuple):
            ours, theirs = dict(enumerate(prefix)), dict(enumerate(children))
        case _:
            return [], []

    def name(key: Any) -> str:
        if not path:
            return repr(key)
        return f"{path}[{key!r}]"

    extra = [name(key) for key in theirs if key not in ours]
    missing = [name(key) for key in ours if key not in theirs]
    for key in ours:
        if key in theirs:
            more, fewer = unmatched(ours[key], theirs[key], f"{path}[{key!r}]")
            extra += more
            missing += fewer
    return extra, missing


@lru_cache(64)
def paths(structure: Structure) -> tuple[str, ...]:
    """Returns the path to each leaf, as a script writes it.

    >>> paths(flatten({"w": [1, 2], "b": 3})[1])
    ("['w'][0]", "['w'][1]", "['b']")
    """
    match structure:
        case ("leaf",):
            return ("",)
        case ("none",):
            return ()
        case ("dict", keys, _, children):
            steps = [f"[{key!r}]" for key in keys]
        case ("named", cls, children):
            steps = [f".{field}" for field in cls._fields]
        case (*_, children):
            steps = [f"[{position}]" for position in range(len(children))]
    return tuple(
        step + path for step, child in zip(steps, children, strict=True) for path in paths(child)
    )


def count_leaves(structure: Structure) -> int:
    """Returns the number of leaves of a structure."""
    if structure == LEAF:
        return 1
    if structure == NONE:
        return 0
    return sum(count_leaves(child) for child in structure[-1])


def describe(structure: Structure) -> str:
    """Returns a structure as Python notation, with `value` for each leaf.

    >>> describe(flatten({"a": 1, "b": (2, None)})[1])
    "{'a': value, 'b': (value, None)}"
    """
    match structure:
        case ("leaf",):
            return "value"
        case ("none",):
            return "None"
    children = [describe(child) for child in structure[-1]]
    match structure:
        case ("dict", keys, _, _):
            items = [f"{key!r}: {child}" for key, child in zip(keys, children, strict=True)]
            return "{" + ", ".join(items) + "}"
        case ("named", cls, _):
            return f"{cls.__name__}({', '.join(children)})"
        case ("list", _):
            return f"[{', '.join(children)}]"
        case _:
            if len(children) == 1:
                return f"({children[0]},)"
            return f"({', '.join(children)})"


def result_text(structure: Structure) -> str:
    """Returns a structure for messages about what a function returned.

    >>> result_text(LEAF), result_text(flatten((1, 2))[1])
    ('one number or array', '(value, value)')
    """
    if structure == LEAF:
        return "one number or array"
    return describe(structure)


def shape_text(value: Any) -> str:
    """Describes the shape of a mismatched value for messages.

    >>> shape_text([1, {"a": 2}]), shape_text(3)
    ("[value, {'a': value}]", 'int')
    """
    structure = flatten(value)[1]
    if structure == LEAF:
        return type(value).__name__
    return describe(structure)
