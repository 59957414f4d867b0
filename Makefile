# A fresh machine needs Python 3.11, git and make; everything else is installed into .venv at the versions of constraints.txt.
PYTHON ?= python3.11
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
# One thread a process: sums keep their order, so numbers repeat from run to run.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help demo test test-all check docs bench wild clean
.DEFAULT_GOAL := help

help: ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/demo ## train, calibrate, measure and report on real data (about 2 minutes once installed)
	$(BIN)/calibrant demo

# make test FAMILY=losses: the tests of one family alone
FAMILY ?=
# The whole suite runs in a process a core; one family starts sooner without them.
WORKERS = $(if $(FAMILY),,-n auto --maxprocesses 4 --dist loadgroup)
FOUND = $(wildcard tests/$(FAMILY) tests/test_$(FAMILY)*.py tests/contracts/test_$(FAMILY).py)
TESTS = $(if $(FAMILY),$(or $(FOUND),$(error expected FAMILY to name tests/FAMILY or tests/test_FAMILY.py, got $(FAMILY); write FAMILY=losses, for example)))

test: .venv/dev ## the test suite without its slow part (FAMILY=losses: that family's tests)
	$(PYTEST) $(WORKERS) -m "not slow" $(TESTS)

test-all: test ## the test suite, then its slow part
	$(PYTEST) $(WORKERS) -m slow

check: .venv/dev docs ## lint, formatting, types and documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/dev ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .bench-venv/ready ## compare speed with other libraries, in an environment of their own
	.bench-venv/bin/python -W ignore -m benchmarks --json .bench-venv/records

wild: .venv/dev ## calibrate classifiers that people have deployed (installs them into .wild)
	$(BIN)/python -m benchmarks.wild

clean: ## remove what was built; keeps .venv and your runs
	rm -rf build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

.bench-venv/ready: pyproject.toml constraints.txt benchmarks/peers.txt
	@echo "Installing the libraries to compare with into .bench-venv (once, a few minutes) ..."
	$(PYTHON) -m venv .bench-venv
	.bench-venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[fast,study,torchmetrics]'
	.bench-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement benchmarks/peers.txt
	@touch $@

.venv/demo: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing what the demo needs into .venv (once, a few minutes) ..."
	$(INSTALL) '.[study,fast]'
	@touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing what the tests and the documentation need into .venv (once, a few minutes) ..."
	$(INSTALL) '.[all,dev,docs]'
	@# PyTorch for CUDA brings its own Triton; the one for the CPU none, and the kernels are tested in its interpreter
	-@$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps triton==3.9.0
	@touch $@
