"""Compiles functions of int64 to machine code, for the runtime of compiled checks.

Numba takes ten times as long for the runtime, most of it to find out that each variable is an
int64. These functions have nothing else, so each statement becomes LLVM's code at once.

Understood are assignments to names, `if`, `while`, `for … in range(…)`, `break`, `continue`,
`return`, integer arithmetic, comparisons, and calls: of each other, of `min` and `max` of two
numbers, of functions of the C library, and of the three that access memory:

    get(table, number)          the word, of 8 bytes, with this number in a table at an address
    put(table, number, value)   sets it
    byte(address)               the byte at an address
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from llvmlite import ir
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

I64: Final = ir.IntType(64)
_I32: Final = ir.IntType(32)
_VOID: Final = ir.VoidType()
_BYTE: Final = ir.IntType(8)

# Functions of the C library, with their types as in C; a pointer is an int64.
_LIBRARY: Final[dict[str, tuple[ir.Type, tuple[ir.Type, ...]]]] = {
    "memset": (I64, (I64, _I32, I64)),
    "memcpy": (I64, (I64, I64, I64)),
    "memcmp": (_I32, (I64, I64, I64)),
    "swapcontext": (_I32, (I64, I64)),
    "getcontext": (_I32, (I64,)),
    "makecontext": (_VOID, (I64, I64, _I32, _I32, _I32)),
}
_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.LShift: "shl", ast.RShift: "ashr",
    ast.BitAnd: "and_",
    ast.BitOr: "or_", ast.BitXor: "xor", ast.FloorDiv: "sdiv",
}  # fmt: skip
_COMPARISONS: Final[dict[type[ast.cmpop], str]] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


def get(table: int, number: int) -> int:
    """Returns a word of a table; for compiled code only."""
    raise NotImplementedError


def put(table: int, number: int, value: int) -> None:
    """Sets a word of a table; for compiled code only."""
    raise NotImplementedError


def byte(address: int) -> int:
    """Returns the byte at an address; for compiled code only."""
    raise NotImplementedError


def memset(address: int, value: int, nbytes: int) -> None:
    """Is C's; so are the following. For compiled code only."""
    raise NotImplementedError


def memcpy(to: int, source: int, nbytes: int) -> None:
    raise NotImplementedError


def memcmp(left: int, right: int, nbytes: int) -> int:
    raise NotImplementedError


def getcontext(context: int) -> None:
    raise NotImplementedError


def swapcontext(current: int, context: int) -> None:
    raise NotImplementedError


def makecontext(context: int, function: int, count: int, first: int, second: int) -> None:
    raise NotImplementedError


def int64(number: ir.Value | int) -> ir.Value:
    """Returns a number as LLVM's value."""
    if isinstance(number, int):
        return ir.Constant(I64, number)
    return number


def word(builder: ir.IRBuilder, table: ir.Value, number: ir.Value | int) -> ir.Value:
    """Emits the pointer to a word of a table."""
    return builder.gep(builder.inttoptr(table, I64.as_pointer()), [int64(number)])


def compile_functions(
    functions: Iterable[Callable[..., int | None]], constants: Mapping[str, int]
) -> tuple[dict[str, int], Any]:
    """Compiles functions that may call each other.

    Args:
        functions: plain functions, with their source.
        constants: values of functions without parameters that they call, by name, such as an
            address.

    Returns:
        The addresses by name, as C functions of int64 that return an int64; what keeps them in
        memory.
    """
    library = cpu_target.target_context.codegen().create_library("synknumba_check")
    module = library.create_ir_module("synknumba_check")
    declared = {}
    for function in functions:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        kind = ir.FunctionType(I64, [I64] * len(tree.args.args))
        value = ir.Function(module, kind, f"synknumba_check_{tree.name}")
        value.attributes.add("noinline")
        # else LLVM unrolls and vectorises loops of a few rounds, which takes twice as long
        value.attributes.add("optsize")
        declared[tree.name] = value, tree, function.__globals__
    callees = {name: value for name, (value, _, _) in declared.items()}
    for value, tree, namespace in declared.values():
        _Translator(module, value, tree, namespace, callees, constants).run()
    with global_compiler_lock:
        library.add_ir_module(module)
        library.finalize()
        return {
            name: library.get_pointer_to_function(value.name) for name, value in callees.items()
        }, library


class _Translator:
    """Translates one function."""

    def __init__(
        self,
        module: ir.Module,
        function: ir.Function,
        tree: ast.FunctionDef,
        namespace: Mapping[str, Any],
        callees: Mapping[str, ir.Function],
        constants: Mapping[str, int],
    ) -> None:
        self._module, self._function, self._tree = module, function, tree
        self._namespace, self._callees, self._constants = namespace, callees, constants
        self._entry = function.append_basic_block("entry")
        self._builder = ir.IRBuilder(function.append_basic_block("body"))
        self._variables: dict[str, ir.Value] = {}
        self._loops: list[tuple[ir.Block, ir.Block]] = []  # where `continue` and `break` go

    def run(self) -> None:
        first = self._builder.block
        for param, value in zip(self._tree.args.args, self._function.args, strict=True):
            self._builder.store(value, self._variable(param.arg))
        self._body(self._tree.body)
        if not self._builder.block.is_terminated:
            self._builder.ret(ir.Constant(I64, 0))
        ir.IRBuilder(self._entry).branch(first)

    def _variable(self, name: str) -> ir.Value:
        if name not in self._variables:
            self._variables[name] = ir.IRBuilder(self._entry).alloca(I64, name=name)
        return self._variables[name]

    # ---- statements

    def _body(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self._builder.block.is_terminated:
                return
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        builder = self._builder
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                builder.store(
                    self._value(ast.BinOp(ast.Name(name, ast.Load()), op, value)),
                    self._variable(name),
                )
            case ast.If(test=test, body=body, orelse=orelse):
                then, other, after = (
                    self._function.append_basic_block(name) for name in ("then", "else", "after")
                )
                self._jump(test, then, other)
                for block, statements in ((then, body), (other, orelse)):
                    builder.position_at_end(block)
                    self._body(statements)
                    self._branch(after)
                builder.position_at_end(after)
            case ast.While(test=test, body=body):
                self._loop(test, body, [])
            case ast.For(target=ast.Name(id=name) as target, iter=ast.Call(args=args), body=body):
                start, stop = [ast.Constant(0), *args][-2:]
                end = ast.Name(f"{name}.end", ast.Store())
                self._assign(end, stop)
                self._assign(target, start)
                test = ast.Compare(target, [ast.Lt()], [end])
                self._loop(test, body, [ast.AugAssign(target, ast.Add(), ast.Constant(1))])
            case ast.Break() | ast.Continue():
                builder.branch(self._loops[-1][isinstance(node, ast.Break)])
            case ast.Return(value=value):
                builder.ret(self._value(value or ast.Constant(0)))
            case ast.Expr(value=ast.Call() as call):
                self._call(call)
            case ast.Expr(value=ast.Constant()):
                pass  # the docstring
            case _:
                raise NotImplementedError(ast.unparse(node))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            values = [self._value(part) for part in value.elts]
            for part, number in zip(target.elts, values, strict=True):
                assert isinstance(part, ast.Name)
                self._builder.store(number, self._variable(part.id))
            return
        assert isinstance(target, ast.Name)
        self._builder.store(self._value(value), self._variable(target.id))

    def _loop(self, test: ast.expr, body: list[ast.stmt], step: list[ast.stmt]) -> None:
        head, inside, behind, after = (
            self._function.append_basic_block(name) for name in ("head", "body", "step", "after")
        )
        self._builder.branch(head)
        self._builder.position_at_end(head)
        self._jump(test, inside, after)
        self._loops.append((behind, after))
        self._builder.position_at_end(inside)
        self._body(body)
        self._branch(behind)
        self._loops.pop()
        self._builder.position_at_end(behind)
        self._body(step)
        self._builder.branch(head)
        self._builder.position_at_end(after)

    def _branch(self, target: ir.Block) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(target)

    # ---- expressions

    def _jump(self, test: ast.expr, then: ir.Block, other: ir.Block) -> None:
        """Branches by a condition."""
        match test:
            case ast.BoolOp(op=op, values=[*first, last]):
                for value in first:
                    following = self._function.append_basic_block("test")
                    if isinstance(op, ast.And):
                        self._jump(value, following, other)
                    else:
                        self._jump(value, then, following)
                    self._builder.position_at_end(following)
                self._jump(last, then, other)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._jump(operand, other, then)
            case ast.Compare(left=left, ops=[first, second], comparators=[middle, right]):
                parts: list[ast.expr] = [
                    ast.Compare(left, [first], [middle]),
                    ast.Compare(middle, [second], [right]),
                ]
                self._jump(ast.BoolOp(ast.And(), parts), then, other)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                self._builder.cbranch(self._compared(left, op, right), then, other)
            case ast.Constant(value=True):
                self._builder.branch(then)
            case _:
                is_true = self._builder.icmp_signed("!=", self._value(test), ir.Constant(I64, 0))
                self._builder.cbranch(is_true, then, other)

    def _compared(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> ir.Value:
        return self._builder.icmp_signed(
            _COMPARISONS[type(op)], self._value(left), self._value(right)
        )

    def _value(self, node: ast.expr) -> ir.Value:
        match node:
            case ast.Name(id=name) if name in self._variables:
                return self._builder.load(self._variables[name])
            case ast.BinOp(left=left, op=op, right=right):
                return getattr(self._builder, _ARITHMETIC[type(op)])(
                    self._value(left), self._value(right)
                )
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._builder.zext(self._compared(left, op, right), I64)
            case ast.Call():
                return self._call(node)
        number = eval(ast.unparse(node), dict(self._namespace))  # noqa: S307  # a constant of the function's module
        return ir.Constant(I64, int(number))

    def _call(self, node: ast.Call) -> ir.Value:
        assert isinstance(node.func, ast.Name)
        name, builder, args = node.func.id, self._builder, [self._value(arg) for arg in node.args]
        match name:
            case "get":
                return builder.load(word(builder, args[0], args[1]))
            case "put":
                return builder.store(args[2], word(builder, args[0], args[1]))
            case "min":
                return builder.select(builder.icmp_signed("<", *args), *args)
            case "max":
                return builder.select(builder.icmp_signed(">", *args), *args)
            case "byte":
                return builder.zext(
                    builder.load(builder.inttoptr(args[0], _BYTE.as_pointer())), I64
                )
        if name in self._constants:
            return ir.Constant(I64, self._constants[name])
        if name in self._callees:
            return builder.call(self._callees[name], args)
        result, kinds = _LIBRARY[name]
        function = self._module.globals.get(name) or ir.Function(
            self._module, ir.FunctionType(result, kinds), name
        )
        for place, kind in enumerate(kinds):
            if kind == _I32:
                args[place] = builder.trunc(args[place], kind)
        returned = builder.call(function, args)
        if result == _I32:
            return builder.sext(returned, I64)
        return returned
