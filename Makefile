# Everything a developer does here. `make` alone lists it. Works in any directory; needs a Python
# 3.11 or newer (another one: make PYTHON=/path/to/python3) and, the first time, the network.

PYTHON ?= python3
BIN := .venv/bin
# Two test workers fit two cores; tests that share a Spark session stay on one of them.
TEST_WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadgroup
# One question each: make bench BENCH=benchmarks/clean_bench.py
BENCH ?= $(wildcard benchmarks/*_bench.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench sweep requirements lock wheel clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
	    while IFS='|' read -r target what; do printf '%-20s %s\n' "$$target" "$$what"; done

setup:  ## make .venv with the locked packages and this project
	@sh tools/setup.sh '$(PYTHON)'

demo: setup  ## real flights into compacted topics, cleaned on Spark, checked
	@$(BIN)/python examples/flights.py

test: check  ## set-up, check, and the everyday tests
	@echo '==> tests'
	@$(PYTEST) -m 'not slow'

check: setup  ## style, types and floors
	@echo '==> ruff'
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo '==> mypy --strict'
	@$(BIN)/python -m mypy --strict
	@echo '==> import-linter'
	@$(BIN)/lint-imports --no-logo

format: setup  ## let ruff put the files in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

sweep: check  ## every test, the slow ones too, then the kernels as plain Python
	@echo '==> all tests, sweeps at their full length'
	@STRATALOG_SWEEP=1 $(PYTEST)
	@echo '==> all tests below Spark, kernels as plain Python'
	@NUMBA_DISABLE_JIT=1 $(PYTEST) -m 'not slow' --ignore tests/spark --ignore tests/pipeline

bench: setup  ## the benchmarks, each prints a table
	@for bench in $(BENCH); do echo "==> $$bench"; $(BIN)/python "$$bench" || exit 1; done

requirements:  ## which tests prove which requirement
	@$(PYTHON) tools/requirements_table.py

lock:  ## write requirements*.txt anew from pyproject.toml (UPGRADE=--upgrade: newest versions)
	@sh tools/lock.sh '$(PYTHON)' $(UPGRADE)

wheel: setup  ## dist/*.whl, for clusters
	@$(BIN)/python -m build --wheel --no-isolation

clean:  ## remove what the targets made, except .venv
	@echo '==> removing caches, dist and what the demo made'
	@rm -rf dist build .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache \
	    .hypothesis demo-data spark-warehouse
	@find src tests tools examples -name __pycache__ -type d -prune -exec rm -rf {} +
