# Needs Python 3.11 or newer and make. Uses uv where it is installed, and python -m venv and pip where it is not.
#
#   make demo                   on the cores of this machine, or on its GPUs where the CUDA packages are installed:
#   make demo EXTRAS=cuda13     installs them too (or cuda12)
#
# All is installed into the virtual environment that is active, or else into .venv.

# The virtual environment that is active, or one of its own. Conda's base is none to install into.
ACTIVE := $(or $(VIRTUAL_ENV),$(if $(filter-out base,$(CONDA_DEFAULT_ENV)),$(CONDA_PREFIX)))
VENV    = $(or $(ACTIVE),.venv)
# Processes that run tests side by side: one more than cores, since some tests wait.
PARALLEL = -n $(shell expr `nproc` + 1) --maxprocesses=5
EXTRAS =
# Tests start hundreds of scripts. Without its bytecode the package takes each of them a second more to import.
export PYTHONDONTWRITEBYTECODE =
UV     := $(shell command -v uv 2>/dev/null)
BIN    := $(VENV)/bin

# The extras to install, as a list with commas; and the file that says they are, newer than pyproject.toml until that changes.
comma := ,
empty :=
space := $(empty) $(empty)
extras = $(subst $(space),$(comma),$(strip $(1) $(subst $(comma),$(space),$(EXTRAS))))
stamp  = $(VENV)/.installed-$(or $(call extras,$(1)),base)

ifdef UV
PYTHON  ?= >=3.11
install  = $(UV) pip install --quiet --python $(BIN)/python
else
PYTHON  ?= python3
# bytecode is made as modules are imported: of all that is installed that would take a quarter of a minute
install  = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
endif

.PHONY: help demo check style types quick test test-all test-ports test-mlir mlir-tests test-lowest lowest-tests test-newest newest-tests ptx ptx-tests gpu-libraries gpu-imports format bench figures docs screens links dist distributions clean distclean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(call stamp,)  ## the main example: an expectation value over ten million rows
	$(BIN)/python examples/energy.py

check: style types  ## format, lint, types and layers

style: $(call stamp,dev)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(call stamp,dev)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

quick: $(call stamp,dev)
	$(BIN)/pytest -q --quick $(PARALLEL)

test: style  ## everything a change must pass, in some ten minutes on two cores: check, doctests and the quick suite
	@$(MAKE) --no-print-directory --jobs 2 types quick

test-all: check  ## the whole matrix of rows, orders, dtypes and modes, for an hour: before a release, and as CONTRIBUTING.md says
	$(BIN)/pytest -q $(PARALLEL)

test-ports: $(call stamp,)  ## the CUDA tests of stumpy, disimpy, xarray-spatial and fbpic on cores, in an environment of their own
	$(BIN)/python -m tests.ports --env .venv/ports

test-mlir:  ## the tests of kernels for numba-cuda-mlir, with that package, in an environment of its own
	@$(MAKE) --no-print-directory VENV=.venv/mlir mlir-tests

mlir-tests: $(call stamp,dev)
	$(install) 'numba-cuda-mlir<0.7' $(foreach one,nvcc nvrtc runtime,'nvidia-cuda-$(one)==13.*') 'nvidia-nvvm==13.*' 'nvidia-nvjitlink==13.*'
	$(BIN)/pytest -q tests/unit/simt/test_mlir.py tests/unit/test_cuda_mlir.py
	$(BIN)/python -m tests.with_mlir -q -k cpu2 tests/conformance/test_rows.py tests/conformance/test_kernels.py

test-lowest:  ## the quick suite with the lowest versions that pyproject.toml allows, in an environment of its own; needs Python 3.11
	@$(MAKE) --no-print-directory VENV=.venv/lowest PYTHON=$(if $(UV),3.11,python3.11) lowest-tests

lowest-tests: | $(VENV)/bin/python
	$(BIN)/python tests/lowest.py dev > $(VENV)/lowest.txt
	$(install) -c $(VENV)/lowest.txt -e '.[dev]'
	$(BIN)/pytest -q --quick $(PARALLEL)

test-newest:  ## the quick suite with Numba's newest release candidate, in an environment of its own
	@$(MAKE) --no-print-directory VENV=.venv/newest newest-tests

newest-tests: | $(VENV)/bin/python
	$(install) -e '.[dev]'
	$(install) --pre --upgrade numba llvmlite
	$(BIN)/pytest -q --quick $(PARALLEL)

ptx:  ## compiles the kernels of the tests for a GPU, without one, in a virtual environment of its own (225 MB to download)
	@$(MAKE) --no-print-directory VENV=.venv/ptx EXTRAS=ptx ptx-tests

ptx-tests: $(call stamp,dev)
	$(BIN)/pytest tests/conformance/simt/test_ptx.py tests/unit/test_cuda_cache_compiled.py tests/unit/test_cuda_llvm.py tests/unit/test_payload.py tests/unit/random_streams/test_compilers.py

gpu-libraries:  ## loads the libraries that EXTRAS=cuda13 (or cuda12) installs, without a GPU, in an environment of its own (2.7 GB)
	@$(MAKE) --no-print-directory VENV=.venv/gpu EXTRAS=$(or $(EXTRAS),cuda13) gpu-imports

gpu-imports: $(call stamp,)
	$(BIN)/python tests/gpu_libraries.py

format: $(call stamp,dev)  ## formats the code, and mends what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(call stamp,bench)  ## times synknumba beside its peers
	@for script in benchmarks/[!_]*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

figures: $(call stamp,)  ## writes the figures of the pages, and their picture, from benchmarks/results
	$(BIN)/python -m docs._site.figures
	$(BIN)/python -m docs._site.drawings

docs: $(call stamp,docs)  ## builds the documentation site into build/docs: runs the examples for its gallery, and checks links between pages
	$(BIN)/python -m docs._site.gallery
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -b html docs build/docs
	$(BIN)/python -m docs._site.built build/docs
	@echo "open build/docs/index.html"

screens: $(call stamp,screens)  ## opens what `make docs` has built in Chromium, at the widths of a phone and of screens; screenshots in build/screens
	$(BIN)/python -m docs._site.screens build/docs build/screens

links: $(call stamp,docs)  ## checks the documentation's links to other sites; needs the network
	$(BIN)/python -m sphinx -W --keep-going -q -b linkcheck docs build/links

dist: distributions  ## builds what a release publishes into dist/, and tests the wheel in an environment of its own; needs a package index
	$(BIN)/python tests/installed_wheel.py dist

distributions: $(call stamp,dist)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	sha256sum dist/*

clean:  ## removes what was built and cached
	rm -rf build docs/gallery dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean  ## removes .venv too
	rm -rf .venv

$(VENV)/bin/python:
ifdef UV
	$(UV) venv --python '$(PYTHON)' $(VENV)
else
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "synknumba needs Python 3.11 or newer, and $(PYTHON) is not. Name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
endif

$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	@echo "installing synknumba and what it needs into $(VENV) (about 80 MB to download, more with EXTRAS)"
	$(install) -e '.$(if $(filter-out base,$*),[$*])'
	@touch $@
