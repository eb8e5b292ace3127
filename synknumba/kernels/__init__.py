"""The kernel library in a checkout: its modules are the files of the folder `kernels/` at the top
of the repository.

An installed package holds that folder under this name, without this file
(`tool.setuptools.package-dir` in pyproject.toml).
"""

from pathlib import Path

__path__ = [str(Path(__file__).parents[2] / "kernels")]
