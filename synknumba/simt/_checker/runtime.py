"""Compiled part of a check: the rule of `_checker.races` once more, in machine words (`record`),
and the loop that runs the threads of a block.

Each CUDA thread is a coroutine on a stack of its own, by the C library's `swapcontext`. At a
barrier or warp operation it stores its request and goes back to the scheduler, as a generator does
in `_python.run`. Block barriers that all threads reach, and blocks that end, are dealt with here;
anything else returns to Python, which decides by the same code as for generators.

The functions are compiled when a process first needs them, and called by name from instrumented
kernels.
"""

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import binding, ir

from synknumba.simt._checker import layout
from synknumba.simt._checker.integer_code import (
    I64,
    byte,
    compile_functions,
    get,
    getcontext,
    int64,
    makecontext,
    memcmp,
    memcpy,
    memset,
    put,
    swapcontext,
)
from synknumba.simt._checker.layout import (
    ATOMIC,
    ATOMICS,
    BLOCK,
    BLOCK_END,
    BUDGET,
    CELL_WORDS,
    CELLS,
    CONTEXT,
    COUNT,
    CURRENT,
    EPOCH,
    FOUND,
    HIGH,
    HINTS,
    KEY,
    KIND,
    LOW,
    NEXT,
    ORDERED_BLOCKS,
    PARKED,
    PASTS,
    PLACE,
    RACES,
    READ,
    READERS,
    REGION_COUNT,
    REGION_WORDS,
    REGIONS,
    SAME,
    SCHEDULER,
    SEEN,
    SHIFT,
    SPACE,
    STACK,
    STAMP,
    STATUS,
    TAG,
    THREAD_WORDS,
    THREADS,
    WRITTEN,
)


def check_state() -> int:
    """Returns the address of the state; for compiled code only."""
    raise NotImplementedError


def report(
    kind: int, where: int, before: int, what_before: int, now: int, what: int, detail: int
) -> None:
    """Adds a finding to the table, or counts it if one of the same kind and sites is there."""
    table = get(check_state(), FOUND)
    count = get(table, 0)
    sites = ((before & 0xFFFF) << 16) | (now & 0xFFFF)
    kinds = (kind << 8) | (what_before << 4) | what
    entry = table
    for _ in range(count):
        entry += 8 * layout.FOUND_WORDS
        if get(entry, layout.FOUND_SITES) == sites and get(entry, layout.FOUND_KINDS) == kinds:
            put(entry, layout.FOUND_TIMES, get(entry, layout.FOUND_TIMES) + 1)
            return
    if count < layout.MOST_FOUND:
        put(table, 0, count + 1)
        entry += 8 * layout.FOUND_WORDS
        put(entry, layout.FOUND_KINDS, kinds)
        put(entry, layout.FOUND_SITES, sites)
        put(entry, layout.FOUND_TIMES, 1)
        put(entry, layout.FOUND_AT, where)
        put(entry, layout.FOUND_BEFORE, before)
        put(entry, layout.FOUND_NOW, now)
        if detail:
            memcpy(entry + 8 * layout.FOUND_DETAIL, detail, 8 * layout.DETAIL_WORDS)


def outside(detail: int, what: int, site: int) -> None:
    """Reports an index out of bounds, and clears what is read there; `detail` is the address of
    `DETAIL_WORDS` words.
    """
    memset(get(check_state(), layout.SCRATCH), 0, layout.SCRATCH_BYTES)
    report(
        layout.OUTSIDE,
        get(detail, 0),
        0,
        0,
        get(get(check_state(), CURRENT), KEY) | site,
        what,
        detail,
    )


def wait(status: int, kind: int, place: int) -> None:
    """Leaves the running thread with a status, for good or until it is resumed."""
    state = check_state()
    me = get(state, CURRENT)
    put(me, STATUS, status)
    put(me, KIND, kind)
    put(me, PLACE, place)
    swapcontext(get(me, CONTEXT), get(state, SCHEDULER))


def frozen(address: int) -> int:
    """Returns whether an address is in a read-only argument or in a constant."""
    state = check_state()
    region, scratch = get(state, REGIONS), get(state, layout.SCRATCH)
    for _ in range(get(state, REGION_COUNT)):
        if get(region, LOW) <= address < get(region, HIGH):
            return get(region, layout.READ_ONLY)
        region += 8 * REGION_WORDS
    if scratch <= address < scratch + layout.SCRATCH_BYTES:
        return 0
    return 1


def pause(state: int, me: int) -> None:
    """Leaves the running thread until Python has looked at the launch."""
    put(me, STATUS, layout.PAUSED)
    swapcontext(get(me, CONTEXT), get(state, SCHEDULER))


def access(address: int, size: int, what: int, site: int) -> None:
    """Records an access of the running thread to a number, and reports a race or an
    uninitialised number.
    """
    state = check_state()
    me = get(state, CURRENT)
    budget = get(state, BUDGET) - 1
    put(state, BUDGET, budget)
    if budget < 0:
        pause(state, me)
    regions, hints = get(state, REGIONS), get(state, HINTS)
    region = regions + 8 * REGION_WORDS * get(hints, site)
    if address < get(region, LOW) or address >= get(region, HIGH):
        count = get(state, REGION_COUNT)
        k = 0
        region = regions
        while k < count and (address < get(region, LOW) or address >= get(region, HIGH)):
            k += 1
            region += 8 * REGION_WORDS
        if k == count:
            return  # a constant, or a temporary
        put(hints, site, k)
    space, offset = get(region, SPACE), address - get(region, LOW)
    now = get(me, KEY) | site
    if what == ATOMIC:
        put(me, ATOMICS, 1)
    if space != layout.GLOBAL_SPACE:
        written = get(region, WRITTEN) + offset
        is_read = (what == READ) | (what == ATOMIC)
        if is_read and get(state, layout.UNINITIALIZED):
            k = 0
            while k < size and byte(written + k):
                k += 1
            if k < size:
                report(layout.UNWRITTEN, address, 0, 0, now, READ, 0)
        if what != READ:
            memset(written, 1, size)
        if space == layout.LOCAL_SPACE:
            return
    if not get(state, RACES):
        return
    if (offset | size) & ((1 << get(region, SHIFT)) - 1):
        put(region, layout.FINER, offset | size)
        pause(state, me)
    put(region, layout.USED, 1)
    shift = get(region, SHIFT)
    cell = get(region, CELLS) + 8 * CELL_WORDS * (offset >> shift)
    where = address
    for _ in range(size >> shift):
        if record(cell, space, what, now, where):
            where = 0
        cell += 8 * CELL_WORDS


def record(cell: int, space: int, what: int, now: int, where: int) -> int:
    """Records an access in a cell, and returns whether it races; reports that unless `where`,
    the address, is 0.
    """
    state = check_state()
    stamp = get(state, EPOCH) | get(get(state, CURRENT), STAMP)
    if space == layout.SHARED_SPACE and get(cell, TAG) != now >> 26:
        memset(cell, 0, 16 * PASTS)
        put(cell, TAG, now >> 26)
    last = PASTS
    if what == READ:
        last = READERS
    equal = races = 0
    for k in range(last):
        past = cell + 16 * k
        before = get(past, 0)
        if before == 0:
            if k >= READERS:
                break
            continue
        if (before ^ now) >> 16 == 0 or (what == ATOMIC and k >> 1 == 1):
            continue
        if are_ordered(past, space, now, stamp):
            continue
        if what != SAME or k >= 2:
            races = 1
            if where:
                report_race(where, before, k, now, what)
            break
        if equal == 0:
            equal = past
    k = 0
    if what == READ:
        k = reader_slot(cell, now, stamp)
        if k < 0:
            return races
    elif what == ATOMIC:
        k = 2
        if get(cell, 4) and (get(cell, 4) ^ now) >> 16:
            memcpy(cell + 48, cell + 32, 16)
    else:
        if equal == 0:
            memset(cell + 16, 0, 16)
        elif equal == cell:
            memcpy(cell + 16, cell, 16)
        memset(cell + 16 * READERS, 0, 16 * (PASTS - READERS))
    put(cell, 2 * k, now)
    put(cell, 2 * k + 1, stamp)
    return races


def are_ordered(past: int, space: int, now: int, stamp: int) -> int:
    """Returns whether a past access of another thread, at an address, is ordered with the present
    one.
    """
    state = check_state()
    me = get(state, CURRENT)
    before, then = get(past, 0), get(past, 1)
    difference = before ^ now
    if difference >> 26:
        return space | get(state, ORDERED_BLOCKS) | (then ^ stamp) >> 54
    if (then ^ stamp) >> 32:
        return 1
    clock = (then >> 16) & 0xFFFF
    if difference >> 21 == 0 and get(me, SEEN + ((before >> 16) & 31)) >= clock:
        return 1
    if not get(me, ATOMICS):
        return 0
    them = get(state, THREADS) + 8 * THREAD_WORDS * ((before >> 16) & 1023)
    return (get(them, STAMP) ^ then) & 0xFFFF


def report_race(where: int, before: int, slot: int, now: int, what: int) -> None:
    """Reports a race with the access that is recorded in a slot of a cell."""
    kind = ATOMIC
    if slot >= READERS:
        kind = READ
    elif slot < 2:
        kind = layout.WRITE
    if what == SAME:
        what = layout.WRITE
    report(layout.RACE, where, before, kind, now, what, 0)


def reader_slot(cell: int, now: int, stamp: int) -> int:
    """Returns the slot of a cell for a read, -1 if the readers in it suffice; if all are taken,
    the oldest goes.
    """
    k = READERS
    while k < PASTS and get(cell, 2 * k) and (get(cell, 2 * k) ^ now) >> 16:
        k += 1
    if k < PASTS:
        return k
    if (get(cell, 2 * READERS) ^ now) >> 26:
        if not get(check_state(), ORDERED_BLOCKS):
            return -1
    elif (get(cell, 2 * READERS + 1) ^ stamp) >> 32 == 0:
        return -1
    for j in range(2 * READERS, 2 * PASTS - 2):
        put(cell, j, get(cell, j + 2))
    return PASTS - 1


def element(data: int, axes: int, sizes: int, number: int) -> int:
    """Returns the address of an element of a view, counted in C order; the other arguments are
    those of `view`.
    """
    remaining, address = number, data
    for place in range(axes):
        axis = axes - 1 - place
        rest = remaining // get(sizes, axis)
        address += (remaining - rest * get(sizes, axis)) * get(sizes, axes + axis)
        remaining = rest
    return address


def count_of(axes: int, sizes: int) -> int:
    """Returns the number of elements of a view."""
    count = 1
    for axis in range(axes):
        count = count * get(sizes, axis)
    return count


def keep(data: int, axes: int, sizes: int, size: int, place: int) -> int:
    """Copies the elements of a view behind `place` bytes of the buffer; returns the bytes used,
    -1 if they do not fit.
    """
    state = check_state()
    nbytes = count_of(axes, sizes) * size
    if place < 0 or place + nbytes > get(state, layout.KEPT_BYTES):
        return -1
    address = get(state, layout.KEPT) + place
    for number in range(count_of(axes, sizes)):
        memcpy(address, element(data, axes, sizes, number), size)
        address += size
    return place + nbytes


def view(data: int, axes: int, sizes: int, size: int, what: int, site: int, before: int) -> None:
    """Records an access to each element of a view.

    Args:
        data: address of the first element.
        axes: number of axes.
        sizes: address of the sizes along the axes, followed by the strides in bytes.
        size: bytes of an element, or of a field of a record.
        what: as for `access`.
        site: as for `access`.
        before: address of the elements before the access, 0 if they are not known.
    """
    for number in range(count_of(axes, sizes)):
        address = element(data, axes, sizes, number)
        if before and memcmp(address, before + number * size, size) == 0:
            access(address, size, SAME, site)
        else:
            access(address, size, what, site)


def begin(state: int) -> None:
    """Begins a block: new threads, and shared memory as it is at first."""
    block, me = get(state, BLOCK), get(state, THREADS)
    for number in range(get(state, COUNT)):
        put(me, STATUS, layout.NEW)
        put(me, KEY, ((block + 1) << 26) | (number << 16))
        put(me, STAMP, 1 << 16)
        put(me, ATOMICS, 0)
        memset(me + 8 * SEEN, 0, 8 * 32)
        me += 8 * THREAD_WORDS
    put(state, EPOCH, get(state, EPOCH) & (-1 << 54))
    nbytes = get(state, layout.SHARED_BYTES)
    memcpy(get(state, layout.SHARED), get(state, layout.SHARED_FILL), nbytes)
    memset(get(state, layout.SHARED_WRITTEN), 0, nbytes)
    put(state, NEXT, 0)


def resume(state: int, me: int, entry: int) -> None:
    """Runs a thread until it waits or ends."""
    context = get(me, CONTEXT)
    if get(me, STATUS) == layout.NEW and not get(me, PARKED):
        getcontext(context)
        put(context, 1, 0)  # uc_link
        put(context, 2, get(me, STACK))  # uc_stack.ss_sp
        put(context, 4, get(state, layout.STACK_BYTES))  # uc_stack.ss_size
        makecontext(context, entry, 2, me >> 32, me & 0xFFFFFFFF)
    put(me, PARKED, 0)
    put(state, CURRENT, me)
    swapcontext(get(state, SCHEDULER), context)


def source(kind: int, lane: int, offset: int) -> int:
    """Returns the lane that a lane shuffles from, as `shfl.sync` of PTX for whole warps."""
    if kind == layout.SHFL:
        return offset
    if kind == layout.SHFL_UP:
        partner = lane - offset
    elif kind == layout.SHFL_DOWN:
        partner = lane + offset
    else:
        partner = lane ^ offset
    if 0 <= partner < 32:
        return partner
    return lane


def join(warp: int, lanes: int) -> None:
    """Merges the vector clocks of the lanes that pass a `syncwarp`, as `run` does."""
    for lane in range(32):
        latest = 0
        them = warp
        for peer in range(32):
            if (lanes >> peer) & 1:
                seen = get(them, SEEN + lane)
                clock = (get(them, STAMP) >> 16) & 0xFFFF
                latest = max(latest, seen)
                if peer == lane:
                    latest = max(latest, clock)
            them += 8 * THREAD_WORDS
        them = warp
        for peer in range(32):
            if (lanes >> peer) & 1:
                put(them, SEEN + lane, latest)
            them += 8 * THREAD_WORDS
    them = warp
    for peer in range(32):
        if (lanes >> peer) & 1 and (get(them, STAMP) >> 16) & 0xFFFF < 0xFFFF:
            put(them, STAMP, get(them, STAMP) + (1 << 16))
        them += 8 * THREAD_WORDS


def answer(warp: int, count: int) -> int:
    """Releases a warp whose waiting lanes all ask for one operation that is complete; returns
    whether it did.
    """
    state = check_state()
    kind = mask = lanes = living = truths = 0
    me = warp
    for lane in range(count):
        status = get(me, STATUS)
        if status == layout.WAITING:
            if lanes and (get(me, KIND) != kind or get(me, layout.MASK) & 0xFFFFFFFF != mask):
                return 0
            kind, mask = get(me, KIND), get(me, layout.MASK) & 0xFFFFFFFF
            lanes |= 1 << lane
            truths |= (get(me, layout.OPERANDS) & 1) << lane
        if status < layout.ENDED or status > layout.FAILED:
            living |= 1 << lane
        me += 8 * THREAD_WORDS
    if lanes == 0 or lanes != mask & living or not layout.SYNCWARP <= kind <= layout.BALLOT:
        return 0
    if kind == layout.SYNCWARP:
        join(warp, lanes)
    vote = truths
    if kind == layout.ALL:
        vote = truths == lanes
    elif kind == layout.ANY:
        vote = truths != 0
    elif kind == layout.EQ:
        vote = (truths == lanes) | (truths == 0)
    me = warp
    for lane in range(count):
        if (lanes >> lane) & 1:
            put(me, STATUS, layout.READY)
            if kind >= layout.ALL:
                put(me, layout.ANSWERS, vote)
            elif kind != layout.SYNCWARP:
                partner = source(kind, lane, get(me, layout.OPERANDS + 1) & 31)
                if (lanes >> partner) & 1:
                    put(me, layout.ANSWERS, get(warp + 8 * THREAD_WORDS * partner, layout.OPERANDS))
                else:
                    put(me, layout.ANSWERS, get(me, layout.OPERANDS))
                    if get(state, layout.UNINITIALIZED):
                        report(
                            layout.ABSENT,
                            partner,
                            0,
                            0,
                            get(me, KEY) | get(me, layout.SITE),
                            READ,
                            0,
                        )
                        if get(state, layout.STAND_IN):
                            put(me, layout.ANSWERS, -1)
        me += 8 * THREAD_WORDS
    return 1


def advance(entry: int) -> int:
    """Runs blocks until all have ended, or until Python has to look at the threads; `entry` is
    the coroutine's function.
    """
    state = check_state()
    threads, count = get(state, THREADS), get(state, COUNT)
    while True:
        if get(state, NEXT) < 0:
            if get(state, BLOCK) >= get(state, BLOCK_END):
                return layout.DONE
            begin(state)
        for k in range(get(state, NEXT), count):
            number = k
            if get(state, layout.REVERSE):
                number = count - 1 - k
            me = threads + 8 * THREAD_WORDS * number
            if get(me, STATUS) <= layout.READY:
                put(state, NEXT, k)
                resume(state, me, entry)
                if get(me, STATUS) == layout.RAISED:
                    return layout.HAS_RAISED
                if get(me, STATUS) == layout.PAUSED:
                    put(me, STATUS, layout.READY)
                    return layout.HAS_PAUSED
                if get(me, STATUS) == layout.FAILED and get(state, layout.SPINS):
                    return layout.HAS_PAUSED
        put(state, NEXT, 0)
        released = k = 0
        while k < count:
            released += answer(threads + 8 * THREAD_WORDS * k, min(32, count - k))
            k += 32
        if released:
            continue
        waiting = ended = 0
        place, me = -1, threads
        for _ in range(count):
            if get(me, STATUS) == layout.WAITING:
                here = -1
                if get(me, KIND) == layout.SYNCTHREADS:
                    here = get(me, PLACE)
                if waiting == 0:
                    place = here
                elif place != here:
                    place = -1
                waiting += 1
            elif get(me, STATUS) == layout.ENDED:
                ended += 1
            me += 8 * THREAD_WORDS
        if waiting == 0:
            put(state, BLOCK, get(state, BLOCK) + 1)
            put(state, NEXT, -1)
        elif place < 0 or ended:
            return layout.STUCK
        else:
            pass_barrier(state)


def pass_barrier(state: int) -> None:
    """Releases all threads that wait from a block barrier."""
    put(state, EPOCH, get(state, EPOCH) + (1 << 32))
    me = get(state, THREADS)
    for _ in range(get(state, COUNT)):
        if get(me, STATUS) == layout.WAITING:
            put(me, STATUS, layout.READY)
        me += 8 * THREAD_WORDS


_FUNCTIONS: Final[tuple[Callable[..., int | None], ...]] = (
    report, outside, wait, frozen, pause, access, record, are_ordered, report_race, reader_slot,
    element, count_of, keep, view, begin, resume, pass_barrier, source,
    join, answer, advance,
)  # fmt: skip


def call(builder: Any, name: str, *args: Any) -> Any:
    """Emits a call of one of these functions, or of "state", which returns the address of the
    state; returns its result. The arguments are values or constants.
    """
    symbol = f"synknumba_check_{name}"
    function = builder.module.globals.get(symbol)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(I64, [I64] * len(args)), symbol)
    return builder.call(function, [int64(arg) for arg in args])


def state() -> int:
    """Returns the address of the state."""
    return check_state()


@functools.cache
def installed() -> np.ndarray[Any, Any]:
    """Returns the state of this process; the first time, compiles the functions and tells LLVM's
    linker their addresses.
    """
    words = np.zeros(layout.STATE_WORDS, np.int64)
    addresses, library = compile_functions((*_FUNCTIONS, state), {"check_state": words.ctypes.data})
    for name, address in addresses.items():
        binding.add_symbol(f"synknumba_check_{name}", address)
    _kept.append(library)
    return words


_kept: list[Any] = []
