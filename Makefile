# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Presumes Python 3.11 or later with pip and venv, nothing else. All of it lands in .venv.

PYTHON  ?= python3
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types tests soak bench mutants peers format clean

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv and install kvbus into it, at the versions of constraints.txt

# The build backend is installed first and used as it is, so that its version is pinned like the others.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "kvbus needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev,tiers,s3,plot]'
	@touch $@

demo: $(READY) ## three tiers under chat traffic: recorded, tailed and checked while they run
	$(BIN)/python -m scripts.demo

test: lint types tests ## everything a change must pass; under ten minutes on two cores

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

tests: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS)

soak: $(READY) ## the tests that take long on purpose
	$(BIN)/python -m pytest -m soak --timeout=3600

bench: $(READY) ## measure against what kvbus cannot beat or wants to beat
	$(BIN)/python -m bench $(BENCH)

mutants: $(READY) ## spoil real streams a thousand times and say how much of it a check sees
	$(BIN)/python -m scripts.mutants

peers: $(READY) ## bring other projects' released code for the tests marked `peer` and for the bench
	$(BIN)/python -m scripts.bring_peers

format: $(READY) ## lay the code out as `make test` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove all that make made, .venv too
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
