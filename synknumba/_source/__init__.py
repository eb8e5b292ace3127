"""What the text of a function shows: which parameters it stores to, and where its threads end.

Called by `_call`, `_sequence` and training; imports `simt.internals` and the errors. Read
`definition.py` first: the one parse of a function that all readers share.
"""
