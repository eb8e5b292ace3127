"""Parts of the compiler used by other packages of synknumba. Private: names may change in any release."""

from synknumba.simt._frontend.arrays import dynamic_shared as dynamic_shared
from synknumba.simt._frontend.compile_errors import cause as cause
from synknumba.simt._frontend.compile_errors import explain as explain
from synknumba.simt._frontend.pickling import by_one_pickler as by_one_pickler
from synknumba.simt._frontend.pickling import is_foreign as is_foreign
from synknumba.simt._frontend.pickling import overloads_of as overloads_of
from synknumba.simt._frontend.pickling import reduce_foreign as reduce_foreign
from synknumba.simt._frontend.pickling import reduce_overloaded as reduce_overloaded
from synknumba.simt._frontend.scope import CudaPath as CudaPath
from synknumba.simt._frontend.scope import Scope as Scope
from synknumba.simt._frontend.scope import with_function as with_function
from synknumba.simt._frontend.signatures import declared_signatures as declared_signatures
from synknumba.simt._frontend.source import read_definition as read_definition
from synknumba.simt._frontend.source_text import keep_text as keep_text
from synknumba.simt._kernel import check_kernel as check_kernel
from synknumba.simt._machine.cache import CacheInfo as CacheInfo
from synknumba.simt._machine.codegen import jit_problem as jit_problem
from synknumba.simt._machine.fingerprint import Fingerprint as Fingerprint
from synknumba.simt._machine.fingerprint import NotComparableError as NotComparableError
from synknumba.simt._machine.fingerprint import environment as environment
from synknumba.simt._machine.fingerprint import type_text as type_text
from synknumba.simt._machine.fingerprint import versions as versions
from synknumba.simt._machine.store import KernelStore as KernelStore
from synknumba.simt._machine.store import directory as directory
from synknumba.simt._machine.store import is_ours as is_ours
from synknumba.simt._machine.vector_math import describe as describe
