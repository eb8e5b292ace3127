"""Parts of the compiler used by other packages of synknumba. Private: names may change in any
release.
"""

from synknumba.simt._explain.compile_errors import cause as cause
from synknumba.simt._explain.compile_errors import explain as explain
from synknumba.simt._explain.numba_says import text_of as text_of
from synknumba.simt._kernel import Launcher as Launcher
from synknumba.simt._kernel import check_kernel as check_kernel
from synknumba.simt._library.typed import emitted as emitted
from synknumba.simt._lower.arrays import dynamic_shared as dynamic_shared
from synknumba.simt._lower.signatures import Signature as Signature
from synknumba.simt._lower.signatures import Signatures as Signatures
from synknumba.simt._lower.signatures import declared_signatures as declared_signatures
from synknumba.simt._machine.cache import CacheInfo as CacheInfo
from synknumba.simt._machine.codegen import jit_problem as jit_problem
from synknumba.simt._machine.fingerprint import Fingerprint as Fingerprint
from synknumba.simt._machine.fingerprint import NotComparableError as NotComparableError
from synknumba.simt._machine.fingerprint import host as host
from synknumba.simt._machine.fingerprint import type_text as type_text
from synknumba.simt._machine.fingerprint import versions as versions
from synknumba.simt._machine.store import LARGEST_TOTAL as LARGEST_TOTAL
from synknumba.simt._machine.store import KernelStore as KernelStore
from synknumba.simt._machine.store import directory as directory
from synknumba.simt._machine.store import is_ours as is_ours
from synknumba.simt._machine.vector_math import describe as describe
from synknumba.simt._numba.frame_space import with_frame_space as with_frame_space
from synknumba.simt._numba.runtime import link_runtime as link_runtime
from synknumba.simt._source import mlir as mlir
from synknumba.simt._source.mlir import counterpart as counterpart
from synknumba.simt._source.numba_cuda import CudaPath as CudaPath
from synknumba.simt._source.numba_cuda import cuda_module as cuda_module
from synknumba.simt._source.numba_cuda import has_cuda_module as has_cuda_module
from synknumba.simt._source.pickling import Pickler as Pickler
from synknumba.simt._source.pickling import by_one_pickler as by_one_pickler
from synknumba.simt._source.pickling import dumps as dumps
from synknumba.simt._source.pickling import is_foreign as is_foreign
from synknumba.simt._source.pickling import overloads_of as overloads_of
from synknumba.simt._source.pickling import reduce_foreign as reduce_foreign
from synknumba.simt._source.pickling import reduce_overloaded as reduce_overloaded
from synknumba.simt._source.reads import names_in as names_in
from synknumba.simt._source.reads import values_read as values_read
from synknumba.simt._source.scope import Scope as Scope
from synknumba.simt._source.scope import with_function as with_function
from synknumba.simt._source.source import read_definition as read_definition
from synknumba.simt._source.source_text import keep_text as keep_text
from synknumba.simt._standins.replace import as_cuda_reported as as_cuda_reported
from synknumba.simt._standins.replace import stands_in as stands_in
