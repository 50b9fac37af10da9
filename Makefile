# Every target sets itself up in .venv; nothing but Python 3.11 or newer is needed before.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help bench bench-peers bench-repeatability test test-long gpu-test gpu-pairs kernels-baseline lint clean

NEW_ENOUGH := 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	if $$python -c $(NEW_ENOUGH) 2>/dev/null; then echo $$python; break; fi; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check
# One thread a worker: two workers fill two cores, and interpreted kernels slow down eightfold on a busy machine otherwise.
# Tests stay beside those of their file, which share truths and folders, until a worker has none left.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

bench: .venv/.runtime  ## run the suite `quick` on the GPU or CPU found here and write its report
	@run=runs/quick-$$(date -u +%Y%m%dT%H%M%SZ); \
	$(BIN)/attnbench run quick -o $$run; status=$$?; \
	if [ $$status -gt 1 ]; then exit $$status; fi; \
	$(BIN)/attnbench report $$run >/dev/null || exit; \
	echo "$$PWD/$$run/report.html"; exit $$status

test: .venv/.test  ## everything that needs no GPU, at most 10 minutes on two cores
	@$(PYTEST) -m "not long and not gpu"

test-long: .venv/.test  ## the long forms: slow tests, and property tests with many examples
	@$(PYTEST) -m "(long or hypothesis) and not gpu" --hypothesis-profile=long

gpu-test: .venv/.test  ## the tests that need a CUDA device
	@TRITON_INTERPRET=0 $(BIN)/python -m pytest -m gpu

gpu-pairs: .venv/.runtime  ## on a CUDA device: counters, timers and peaks beside another way to the same number, as a table
	@$(BIN)/python -m benchmarks.gpu_pairs $(ARGS)

bench-peers: .venv/.peers  ## the CPU paths of sliding-window and linear against other packages, in one table
	@mkdir -p runs
	@$(BIN)/python benchmarks/peers.py --json runs/peers.json

bench-repeatability: .venv/.runtime  ## run `quick` five times: how far medians lie apart, how often intervals hold
	@$(BIN)/python benchmarks/repeatability.py --output runs/repeatability-$$(date -u +%Y%m%dT%H%M%SZ)

kernels-baseline: .venv/.test  ## compile every kernel for every target and write what the tests hold them to
	@$(BIN)/python -m tests.kernels_aot.update_baseline

lint: .venv/.lint  ## style, types, and which module may import which
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

clean:  ## remove .venv and what tools left; runs/ stays
	rm -rf .venv build dist .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.python:
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c $(NEW_ENOUGH) 2>/dev/null; then \
		echo "attnbench needs Python 3.11 or newer (found none; name one with: make PYTHON=/path/to/python3)" >&2; exit 1; fi
	@"$(PYTHON)" -m venv .venv
	@touch $@

.venv/.runtime: .venv/.python pyproject.toml
	@echo "Installing attnbench into .venv (once; PyTorch is large)"
	@$(PIP) -e .
	@touch $@

.venv/.test: .venv/.python pyproject.toml
	@echo "Installing attnbench and its test tools into .venv (once)"
	@$(PIP) -e '.[test]'
	@touch $@ .venv/.runtime

.venv/.peers: .venv/.runtime
	@echo "Installing the packages to compare with into .venv (once)"
	@$(PIP) -e '.[peers]'
	@touch $@

.venv/.lint: .venv/.test
	@echo "Installing the lint tools into .venv (once)"
	@$(PIP) -e '.[test,lint]'
	@touch $@
