"""What the text of a function shows: how it uses its names, and where its threads end.

    definition.py    one parse of a function
    kernel_facts.py  uses and bindings of each name, found in one pass
        access.py            which parameters are written, or certainly only read?
        lost_assignments.py  which assignments to parameters does nothing read?
        grid_limits.py       with what are positions of threads compared? (`grid_names.py`: which are those)
    array_expressions.py  does it nothing but compute with arrays?
    reached.py       the functions and values that a function reaches by names, closures and methods

Called by `_rank`, `_world`, `_call`, `_sequence` and training; imports `simt.internals` and the errors. Read
`kernel_facts.py` first. What a call makes of the answers, its messages among them, is in `_call`.
"""  # noqa: E501
