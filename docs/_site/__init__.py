"""What the documentation site needs beside its pages: extensions of Sphinx, and programs that
draw and that run examples.
"""
