# `make` alone prints what there is. Needs: git, make, python3 (3.11 or newer, with venv and pip).

PYTHON ?= python3
BIN := .venv/bin
INSTALL := python -m pip install --quiet --disable-pip-version-check --no-input
PIP := $(BIN)/$(INSTALL) --constraint constraints.txt
TESTED := cli,stack,yaml,crypto,testing,server,http,otel

.DEFAULT_GOAL := help
.NOTPARALLEL: # `make -j check` goes step by step too
.PHONY: help demo stack test test-faults test-long test-lowest test-adapters test-page test-typescript check lint types types-page types-typescript page-pictures layers format bench pages docs clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

demo: .venv/.core ## see an agent killed, its work finished, and nothing done twice
	@$(BIN)/saveslot demo

stack: .venv/.stack ## the same on a PostgreSQL and a Valkey, started for it from wheels
	@$(BIN)/saveslot demo --stack

# A stall of the machine can fail a test of real servers and processes. What failed runs once more, alone and named.
AGAIN = { echo "these failed; once more, one at a time:"; $(BIN)/pytest -v --last-failed --last-failed-no-failures none

test: .venv/.dev ## the quick tests
	@$(BIN)/pytest -n 4 -m "not faults and not long" --ignore tests/adapters --ignore tests/page tests \
		|| $(AGAIN) -m "not faults and not long" --ignore tests/adapters --ignore tests/page tests; }

test-faults: .venv/.dev ## kill, pause and I/O fault tests
	@$(BIN)/pytest -m "faults and not long" --ignore tests/adapters --ignore tests/page tests \
		|| $(AGAIN) -m "faults and not long" --ignore tests/adapters --ignore tests/page tests; }

test-long: .venv/.dev ## the same over many more histories and kills
	@$(BIN)/pytest -n 2 --timeout 3600 -m long --ignore tests/adapters --ignore tests/page tests

test-lowest: .venv-lowest/.done ## tests with the lowest versions that pyproject.toml allows
	@.venv-lowest/bin/pytest -n 2 -m "not faults and not long" tests/codec tests/manager tests/stores tests/test_public.py \
		tests/cli/test_terminal.py tests/cli/test_views.py

# Frameworks that need other versions of a package than the rest; each has an environment and constraints of its own.
APART := adk strands

test-adapters: .venv/.dev .venv-adapters/.done $(APART:%=.venv-%/.done) ## the adapters, with the frameworks that they serve: types and tests
	@$(BIN)/basedpyright --project tests/adapters/pyrightconfig.json
	@.venv-adapters/bin/pytest tests/adapters $(APART:%=--ignore tests/adapters/%)
	@for name in $(APART); do \
		$(BIN)/basedpyright --project tests/adapters/$$name/pyrightconfig.json && .venv-$$name/bin/pytest tests/adapters/$$name || exit 1; \
	done

test-page: .venv-page/.done ## the web page: its modules in Node, its screens in Chromium (both must be there)
	@node --test --test-reporter=dot tests/page/js
	@.venv-page/bin/pytest -m "not long" tests/page

# Its declarations are compared with those that are here, so the version is fixed.
TSC = npx --yes --package typescript@5.9.3 tsc --project clients/typescript

test-typescript: .venv/.dev ## the TypeScript client: its types, and in Node against a real server (Node and npx must be there)
	@$(TSC)
	@cmp build/typescript/saveslot.d.mts clients/typescript/saveslot.d.mts || { echo "run: make types-typescript"; exit 1; }
	@$(BIN)/pytest tests/docs/test_generated.py -k typescript
	@PATH="$(CURDIR)/$(BIN):$$PATH" node --test --test-reporter=dot --test-timeout=60000 \
		clients/typescript/saveslot.test.mjs

check: lint types layers test test-faults ## all that must pass before a commit

lint: .venv/.dev ## ruff: rules and format
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check || { echo "run: make format"; exit 1; }

types: .venv/.dev ## basedpyright, strict, on src; it and three others on a program that uses the API
	@$(BIN)/basedpyright --pythonpath $(BIN)/python
	@$(BIN)/mypy --strict --python-executable $(BIN)/python --no-error-summary tests/typing/program.py
	@$(BIN)/ty check --quiet --python .venv tests/typing/program.py
	@$(BIN)/pyrefly check --summary none --python-interpreter-path $(BIN)/python tests/typing/program.py

page-pictures: .venv-page/.done ## take the pictures of docs/page anew
	@.venv-page/bin/python -m tests.page.pictures docs/page

types-page: ## the JSDoc types of the web page, by TypeScript, which npx brings
	@npx --yes --package typescript tsc --noEmit --allowJs --checkJs --strict --target es2022 --module es2022 \
		--moduleResolution bundler --lib es2023,dom,dom.iterable src/saveslot/server/page/app.js

types-typescript: .venv/.dev ## write the types of the TypeScript client anew
	@$(BIN)/python clients/typescript/make_types.py
	@$(TSC) && cp build/typescript/saveslot.d.mts clients/typescript

layers: .venv/.dev ## import-linter: calls go down only
	@$(BIN)/lint-imports --no-logo

format: .venv/.dev ## put the code into its usual form
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format --quiet

bench: .venv/.bench ## measure speed and size, beside peers
	@$(BIN)/python -m bench

pages: .venv/.dev ## write the reference, the table of figures and the diagrams anew
	@$(BIN)/python docs/make_reference.py
	@$(BIN)/python docs/make_table.py
	@$(BIN)/python docs/make_diagrams.py

docs: pages .venv-docs/.done ## the same, and build all pages as a site with search, in build/site
	@$(PYTHON) docs/make_site.py
	@cd build && ../.venv-docs/bin/zensical build --clean --config-file zensical.toml
	@! grep -rlE '<(script|img|iframe)[^>]* src="https?:|<link[^>]* href="https?:' build/site --include='*.html' \
		|| { echo "these pages load something from another host"; exit 1; }
	@echo "look at it: $(PYTHON) -m http.server --directory build/site"

clean: ## remove the environment, caches and builds
	@rm -rf .venv .venv-adapters $(APART:%=.venv-%) .venv-docs .venv-lowest .venv-page .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is younger than what it was installed from, or pip runs again.
# constraints.txt is `pip freeze --exclude-editable` after installing the groups dev, adapters, bench, docs and page into an empty environment.
# pip reads groups from 25.1 on; Debian 12 has an older one.

.venv/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "Saveslot needs Python 3.11 or newer; choose one with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "$(PYTHON) has no venv; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@test -f $@ && $(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear .venv # half made: start over
	@echo "installing saveslot into .venv (once)"
	@$(PIP) --upgrade 'pip>=25.1'
	@$(PIP) --editable '.[cli,server]'
	@touch $@

.venv/.stack: .venv/.core
	@echo "installing PostgreSQL and Valkey into .venv (once)"
	@$(PIP) --editable '.[cli,stack]'
	@touch $@

.venv/.dev: .venv/.core
	@echo "installing the development tools into .venv (once)"
	@$(PIP) --editable '.[$(TESTED)]' --group dev
	@touch $@

.venv/.bench: .venv/.core
	@echo "installing the benchmark peers into .venv (once)"
	@$(PIP) --editable '.[cli,stack]' --group bench
	@touch $@

.venv-docs/.done: pyproject.toml constraints.txt
	@echo "installing the site builder into .venv-docs (once)"
	@$(PYTHON) -m venv --clear .venv-docs
	@.venv-docs/bin/$(INSTALL) --upgrade 'pip>=25.1'
	@.venv-docs/bin/$(INSTALL) --constraint constraints.txt --group docs
	@touch $@

.venv-adapters/.done: pyproject.toml constraints.txt
	@echo "installing the agent frameworks into .venv-adapters (once)"
	@$(PYTHON) -m venv .venv-adapters
	@.venv-adapters/bin/$(INSTALL) --upgrade 'pip>=25.1'
	@.venv-adapters/bin/$(INSTALL) --constraint constraints.txt --editable '.[$(TESTED)]' --group test --group adapters
	@touch $@

# constraints-NAME.txt has what differs from constraints.txt, and what is new.
$(APART:%=.venv-%/.done): .venv-%/.done: pyproject.toml constraints.txt constraints-%.txt
	@echo "installing the framework $* into .venv-$* (once)"
	@$(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/$(INSTALL) --upgrade 'pip>=25.1'
	@awk -F == 'NR == FNR { own[$$1]; print; next } !($$1 in own)' constraints-$*.txt constraints.txt >.venv-$*/constraints.txt
	@.venv-$*/bin/$(INSTALL) --constraint .venv-$*/constraints.txt --editable '.[$(TESTED)]' --group test --group $*
	@touch $@

.venv-lowest/.done: pyproject.toml lowest.txt .venv/.core
	@echo "installing the lowest versions into .venv-lowest (once)"
	@$(PYTHON) -m venv --clear .venv-lowest
	@.venv-lowest/bin/$(INSTALL) --upgrade 'pip>=25.1'
	@.venv-lowest/bin/$(INSTALL) --constraint lowest.txt --editable '.[$(TESTED)]' --group test
	@touch $@

.venv-page/.done: pyproject.toml constraints.txt
	@echo "installing what drives a browser into .venv-page (once)"
	@$(PYTHON) -m venv .venv-page
	@.venv-page/bin/$(INSTALL) --upgrade 'pip>=25.1'
	@.venv-page/bin/$(INSTALL) --constraint constraints.txt --editable '.[$(TESTED)]' --group test --group page
	@touch $@
