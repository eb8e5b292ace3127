"""On the path of processes that the quick suite starts: at their end none goes through half a
million objects of Numba's.

That is a third of the processor time of a process that does little else, and what a collection then
finds is of no use to
anybody: its memory goes with it. Before, they look for garbage less often, as the tests do. In the
whole suite processes run and end as they do elsewhere.
"""

import atexit
import gc
import os

gc.set_threshold(10_000, 20, 20)  # as in tests/conftest.py: it is a twentieth of an import of Numba
atexit.register(gc.freeze)  # the first that is registered runs last

if "SYNKNUMBA_ENTERED_CURRENT" in os.environ:
    from tests import entered

    entered.record()
