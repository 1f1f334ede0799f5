# Everything a person does with this repository. `make` lists the targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
WORKERS ?= 2
# Through PgBouncer, where it is installed: whoever may do what, writes, searches, conversations. All of it: tests/api.
POOLED := $(addprefix tests/api/test_,walls.py memories.py search.py sessions.py)
# Small numbers stay small here (versions, counters), and the varchar is alembic's own.
SQUAWK_EXCLUDED := --exclude=prefer-bigint-over-int,prefer-bigint-over-smallint,prefer-text-field

.DEFAULT_GOAL := help
.PHONY: help run test faults soak check format eval eval-dedup eval-conflict bench simulate settings clean distclean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed ## Install if needed, then start database, API and worker on 127.0.0.1:8000.
	@exec $(BIN)/mneme up

test: $(VENV)/.installed-dev ## Run all tests (real PostgreSQL, real HTTP, real model).
	@$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

faults: $(VENV)/.installed-dev ## Break things on purpose, and see that nothing is lost and all of it heals: a few minutes.
	@$(BIN)/python -m pytest -m '' --durations=15 tests/faults $(ARGS)
	@$(BIN)/python -m pytest -q --pooler $(POOLED)

soak: $(VENV)/.installed-dev ## 15 minutes of mixed load; memory, descriptors, threads, connections stay flat: make soak ARGS="--minutes 60".
	@$(BIN)/python -m tests.operations.soak $(ARGS)

check: $(VENV)/.installed-dev ## Format, lint, types, import floors, migrations' SQL, house limits: seconds.
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@mkdir -p build && rm -f build/*.sql && from=base && for to in $$($(BIN)/alembic history 2> build/alembic.log | sed -n 's/^.* -> \([0-9a-z]*\).*/\1/p' | tac); do \
	  $(BIN)/alembic upgrade $$from:$$to --sql > build/$$to.sql 2> build/alembic.log || { cat build/alembic.log; exit 1; }; from=$$to; done
	@$(BIN)/squawk --pg-version=16 $(SQUAWK_EXCLUDED) build/*.sql
	@$(BIN)/python -m pytest -q tests/house

format: $(VENV)/.installed-dev ## Format the code and sort the imports.
	@$(BIN)/ruff check --fix-only --select I .
	@$(BIN)/ruff format .

eval: $(VENV)/.installed ## Retrieval quality over HTTP: make eval DATA=folder.
	@test -n "$(DATA)" || { echo "usage: make eval DATA=folder"; exit 2; }
	@$(BIN)/mneme eval $(DATA) $(ARGS)

eval-dedup: $(VENV)/.installed ## What is taken for a duplicate, on labelled pairs: make eval-dedup DATA=folder.
	@test -n "$(DATA)" || { echo "usage: make eval-dedup DATA=folder"; exit 2; }
	@$(BIN)/mneme eval-dedup $(DATA) $(ARGS)

eval-conflict: $(VENV)/.installed ## What is overruled by rules, on labelled pairs: make eval-conflict DATA=folder.
	@test -n "$(DATA)" || { echo "usage: make eval-conflict DATA=folder"; exit 2; }
	@$(BIN)/mneme eval-conflict $(DATA) $(ARGS)

bench: $(VENV)/.installed ## Load test beside raw SQL of the same run.
	@$(BIN)/mneme bench $(ARGS)

simulate: $(VENV)/.installed-dev ## A made-up year with and without the jobs, an hour: make simulate ARGS="--subjects 100 --writes 15000" takes 4 minutes.
	@$(BIN)/mneme simulate --plot docs/forgetting-year.png $(ARGS)

settings: $(VENV)/.installed ## Rewrite docs/settings.md from the settings themselves.
	@$(BIN)/mneme config docs > docs/settings.md

clean: ## Remove caches; the virtual environment and the data stay.
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
	@find . -name __pycache__ -not -path './.*' -prune -exec rm -rf {} +

distclean: clean ## Remove the virtual environment too; the data stay.
	@rm -rf $(VENV)

# Stamps: a second start installs nothing. An interrupted install leaves no stamp and is done again.
$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Mneme needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing Mneme into $(VENV) (once, a few minutes) ..."
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the development tools into $(VENV) (once) ..."
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@
