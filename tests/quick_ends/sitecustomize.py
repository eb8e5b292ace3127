"""On the path of processes that the quick suite starts: at their end none goes through half a million objects of Numba's.

That is a third of the processor time of a process that does little else, and what a collection then finds is of no use to
anybody: its memory goes with it. In the whole suite processes end as they do elsewhere.
"""

import atexit
import gc

atexit.register(gc.freeze)  # the first that is registered runs last
