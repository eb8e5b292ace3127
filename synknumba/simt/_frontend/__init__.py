"""Front end of the compiler: translates a Python function into the code of one thread."""
