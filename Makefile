# A fresh machine needs Python 3.11, git and make; everything else is installed into .venv at the versions of constraints.txt.
# make test PYTHON=python3.13, or a path: with another interpreter, in an environment of its own named by its version.
PYTHON ?= python3.11
VERSION := $(or $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null),3.11)
VENV := $(if $(filter 3.11,$(VERSION)),.venv,.venv-$(VERSION))
BIN := $(VENV)/bin
PIP := -m pip install --progress-bar off --disable-pip-version-check
# Of what pip says: packages of a megabyte or more as they come, and when all are unpacked, which takes as long. A failure of pip
# fails its recipe (pipefail); its errors are not filtered.
SHELL := bash
.SHELLFLAGS := -o pipefail -c
BRIEFLY := | { grep --line-buffered -oE '(Downloading|Using cached) .* [MG]B\)|^Installing collected packages' || true; }
INSTALL := $(BIN)/python $(PIP) --constraint constraints.txt --editable
# One thread a process: sums keep their order, so numbers repeat from run to run. What is compiled is kept whatever the shell says:
# each worker and each process that a test starts would compile all sources and tests again, for a third of the time.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.PHONY: help demo test test-all test-lowest check docs nightly dist bench clean
.DEFAULT_GOAL := help

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/demo ## train, calibrate, measure and report on real data (about 2 minutes once installed)
	$(BIN)/calibrant demo

# make test FAMILY=losses: the tests of one family alone
FAMILY ?=
# The whole suite runs in a process a core, each file in one of them, so that its fixtures are made and its packages imported once;
# one family starts sooner without them.
WORKERS = $(if $(FAMILY),,-n auto --maxprocesses 4 --dist loadfile)
FOUND = $(wildcard tests/$(FAMILY) tests/test_$(FAMILY)*.py tests/contracts/test_$(FAMILY).py)
TESTS = $(if $(FAMILY),$(or $(FOUND),$(error expected FAMILY to name tests/FAMILY or tests/test_FAMILY.py, got $(FAMILY); write FAMILY=losses, for example)))

test: $(VENV)/dev ## the test suite without its slow part (FAMILY=losses: that family's tests)
	$(PYTEST) $(WORKERS) -m "not slow" $(TESTS)

# A few files hold most of the slow part: there each test goes to the worker that is free.
test-all: test ## the test suite, then its slow part
	$(PYTEST) $(subst loadfile,loadgroup,$(WORKERS)) -m slow

# Old versions of other packages warn of each other there, or leave files open: such a warning is no failure of ours.
test-lowest: .venv-lowest/ready ## the same with the lowest versions that pyproject.toml declares
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -W default::DeprecationWarning -W default::pytest.PytestUnraisableExceptionWarning $(WORKERS) -m "not slow" $(TESTS)

nightly: $(VENV)/dev ## injured files, killed commands and full disks (CALIBRANT_SEED=7: others of them)
	$(PYTEST) -n auto --maxprocesses 4 tests/robustness

check: $(VENV)/dev docs ## lint, formatting, types and documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/dev ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(VENV)/dev ## build wheel and sdist into dist/, twice with the same bytes, and try the wheel alone
	rm -rf dist build
	for folder in dist build/again; do SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build -d $$folder; done
	cd dist && sha256sum * > SHA256SUMS && cd ../build/again && sha256sum --check --quiet ../../dist/SHA256SUMS
	$(PYTHON) -m venv build/venv
	build/venv/bin/python $(PIP) --constraint constraints.txt dist/*.whl $(BRIEFLY)
	cd build && venv/bin/calibrant report --example cifar10 -o report.html

bench: .bench-venv/ready ## compare speed with other libraries, in an environment of their own
	.bench-venv/bin/python -W ignore -m benchmarks.race --json .bench-venv/records

clean: ## remove what was built; keeps .venv and your runs
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

.bench-venv/ready: pyproject.toml constraints.txt benchmarks/race/peers.txt
	@echo "Installing the libraries to compare with into .bench-venv (once, a few minutes) ..."
	$(PYTHON) -m venv .bench-venv
	.bench-venv/bin/python $(PIP) --constraint constraints.txt --editable '.[fast,study,torchmetrics]' $(BRIEFLY)
	.bench-venv/bin/python $(PIP) --no-deps --requirement benchmarks/race/peers.txt $(BRIEFLY)
	@touch $@

.venv-lowest/ready: pyproject.toml constraints-lowest.txt
	@echo "Installing the lowest declared versions into .venv-lowest (once, a few minutes) ..."
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python $(PIP) --requirement constraints-lowest.txt $(BRIEFLY)
	.venv-lowest/bin/python $(PIP) --no-deps --editable . $(BRIEFLY)
	@touch $@

$(VENV)/demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing what the demo needs into $(VENV) (once, a few minutes) ..."
	@$(INSTALL) '.[study,fast]' $(BRIEFLY)
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing what the tests and the documentation need into $(VENV) (once, a few minutes) ..."
	@$(INSTALL) '.[all,dev,docs]' $(BRIEFLY)
	@# PyTorch for CUDA brings its own Triton; the one for the CPU none, and the kernels are tested in its interpreter
	-@$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/python $(PIP) --no-deps triton==3.9.0 $(BRIEFLY)
	@touch $@
