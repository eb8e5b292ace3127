"""From a Python function to the code of one thread: source, names, device functions."""
