"""The examples in a checkout: the folder `examples/` at the top of the repository, whose files
`synknumba new` and `synknumba examples` copy. Imports nothing. Read `energy.py` there first.

An installed package holds that folder under this name, without this file
(`tool.setuptools.package-dir` in pyproject.toml).
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / "examples")]
