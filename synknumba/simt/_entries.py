"""The compiled launch functions of a kernel: found in the process or on disk, else compiled.

Errors of Numba are turned into errors of the kernel's source here.
"""

import functools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import final

from numba.core import errors, types
from numba.core.compiler import CompileResult

from synknumba._errors import KernelError
from synknumba.simt._emit.build import KernelProgram
from synknumba.simt._emit.cuda_extensions import EXTENSIONS
from synknumba.simt._emit.emit import BlockKind, block_kind
from synknumba.simt._emit.error_location import WHERE_TYPE, located
from synknumba.simt._emit.options import Options
from synknumba.simt._emit.region import Block
from synknumba.simt._explain.arguments import write_to_readonly
from synknumba.simt._explain.compile_errors import explain
from synknumba.simt._explain.cuda_only import cuda_only, refuse_arguments
from synknumba.simt._library.readonly_records import REFUSAL
from synknumba.simt._lower.signatures import Signature
from synknumba.simt._machine.cache import KernelCache
from synknumba.simt._machine.codegen import Compiled, compile_launch, jit_problem
from synknumba.simt._maths import bfloat16, float16
from synknumba.simt._numba.compilation import compilation

# Block sizes for which a signature gets specialised code; launches with further sizes share code
# for any block.
MAX_BLOCKS = 4

# A compiled launch function: takes grid size, block size, bytes of dynamic shared memory, and the
# kernel's arguments.
Entry = Callable[..., None]


@final
class Entries:
    """The entries of a kernel by argument types and block size.

    Attributes:
        texts: source of the launch functions by argument types, in the order of compilation.
    """

    def __init__(self, function: FunctionType, options: Options, cache: KernelCache) -> None:
        self._function, self._options, self._cache = function, options, cache
        self.texts: dict[Signature, str] = {}
        self._by_block: dict[tuple[Signature, Block | None], Entry] = {}
        self._any_block_size: dict[tuple[Signature, BlockKind], Entry] = {}
        self._natives: dict[Entry, tuple[Signature, CompileResult]] = {}

    @functools.cached_property
    def program(self) -> KernelProgram:
        """The translated kernel."""
        problem = jit_problem()
        if problem:
            raise KernelError(f"{self._function.__qualname__} cannot be compiled: {problem}")
        self._cache.translating()
        EXTENSIONS.adopt()
        return KernelProgram(self._function, self._options)

    @property
    def signatures(self) -> list[Signature]:
        """Argument types of the compiled code."""
        return list(dict.fromkeys(kinds for kinds, _ in self._by_block))

    def native(self, entry: Entry) -> tuple[Signature, CompileResult] | None:
        """Returns argument types and code of an entry; None if Python locates its errors."""
        return self._natives.get(entry)

    def of(self, kinds: Signature, block: Block | None = None) -> Entry:
        """Returns the entry for these types and this block, or for any block if it is None."""
        entry = self._by_block.get((kinds, block))
        if entry is not None:
            return entry
        if block is not None:
            entry = self._any_block_size.get((kinds, block_kind(block)))
            if entry is not None:
                self._by_block[kinds, block] = entry
                return entry
            if sum(known == kinds for known, _ in self._by_block) >= MAX_BLOCKS:
                return self.of(kinds)
        return self._add(kinds, block)

    def _add(self, kinds: Signature, block: Block | None) -> Entry:
        if any(float16.is_named(str(kind)) for kind in kinds):
            self._need_float16()  # loaded code, too, takes arguments of its types
        if any(bfloat16.is_named(str(kind)) for kind in kinds):
            bfloat16.represent()
        keyed = (*kinds, *map(types.literal, block or ()))
        compiled = self._cache.get(keyed, functools.partial(self._compile, kinds, block))
        entry = compiled.entry
        if self._options.debug:
            entry = located(entry, self._function)
        else:
            self._natives[entry] = kinds, compiled.result
        self._by_block[kinds, block] = entry
        if compiled.any_block_size:
            self._any_block_size[kinds, block_kind(block)] = entry
        self.texts.pop(kinds, None)
        self.texts[kinds] = compiled.text  # last in order, for `Kernel.source`
        return entry

    @compilation()
    def _compile(self, kinds: Signature, block: Block | None, key: str) -> Compiled:
        argtypes = dict(zip(self.program.params, kinds, strict=True))
        source = self.program.code.source
        EXTENSIONS.adopt()
        refuse_arguments(source, argtypes)
        try:
            return self._build_with_float16(argtypes, block, key)
        except errors.TypingError as error:
            if REFUSAL in str(error):  # other messages may name a readonly type, too
                raise write_to_readonly(source, self.program.body, argtypes, str(error)) from error
            self.program.refuse_several_types(argtypes)
            self._refuse(error)
            raise
        except (errors.NumbaError, NotImplementedError, AttributeError) as error:
            self._refuse(error)
            raise
        except RecursionError:
            if (refusal := self.program.endless()) is None:
                raise
            raise refusal from None

    def _build_with_float16(
        self, argtypes: Mapping[str, types.Type], block: Block | None, key: str
    ) -> Compiled:
        try:
            return self._build(argtypes, block, key)
        except (errors.NumbaError, NotImplementedError) as error:
            # The type may be named in the body alone.
            if float16.is_represented() or not float16.is_named(str(error)):
                raise
        self._need_float16()
        return self._build(argtypes, block, key)

    def _build(self, argtypes: Mapping[str, types.Type], block: Block | None, key: str) -> Compiled:
        bfloat16.prepare()
        if float16.is_represented():
            float16.register()
        kinds = [types.int64] * 7 + [*argtypes.values()]
        if self._options.debug:
            kinds.append(WHERE_TYPE)
        return compile_launch(self.program.compile(argtypes, block), tuple(kinds), key)

    def _need_float16(self) -> None:
        """Prepares Numba for float16; raises KernelError on a processor that cannot convert it."""
        if problem := float16.problem():
            source = self.program.code.source
            raise source.refusal(source.tree, f"float16 ({problem})", "compute in float32")
        float16.represent()

    def _refuse(self, error: Exception) -> None:
        """Raises KernelError for an error of Numba, with the place in the kernel, unless Numba's
        own text is asked for.
        """
        refusal = cuda_only(error, self.program.code.source, self.program.namespace)
        if refusal is not None:
            raise refusal from error
        if str(self._function.__module__).startswith("synknumba."):
            return  # a kernel around a user's function, whose caller explains
        if (short := explain(error, self._function, anywhere=True)) is not None:
            raise short from None
