# Entry points of the project. `make help` lists them; each target creates what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OLDEST := $(VENV)-oldest
# The tests of a file share data and models, so they run in one process.
SIDE_BY_SIDE := --numprocesses auto --maxprocesses 4 --dist loadfile
# Otherwise each of hundreds of processes would compile the package and the tests again.
test test-slow test-all: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all test-oldest check chaos audit release-check bench docs site clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

setup: $(READY)  ## Create .venv and install the locked packages

demo: $(READY)  ## Train DBA on ListOps at laptop scale (one to three minutes) and show the result
	$(BIN)/python train.py attention=dba task=lra/listops scale=laptop

test: $(READY)  ## Run the test suite on up to four cores
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

test-slow: $(READY)  ## Run the tests that train for longer
	$(BIN)/python -m pytest -m "slow and not release and not gpu" $(SIDE_BY_SIDE)

test-all: $(READY)  ## Run every test, as before a release
	$(BIN)/python -m pytest -m "not gpu" $(SIDE_BY_SIDE)

test-oldest: $(READY)  ## Run the test suite with the oldest allowed versions of all packages but torch
	$(PYTHON) -m venv --clear $(OLDEST)
	$(BIN)/python .ci/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt --editable ".[dev,onnx,joblib,docs]"
	$(OLDEST)/bin/python -m pytest $(SIDE_BY_SIDE) -W default::DeprecationWarning # old packages warn of new ones

check: $(READY)  ## Formatting, lint, types, import rules and the requirements of packages
	$(BIN)/python -m pip check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: $(READY)  ## Look for known vulnerabilities of the locked packages (needs a network)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock pip-audit
	$(BIN)/python -m pip_audit --strict --no-deps --disable-pip --requirement requirements.lock

release-check: $(READY)  ## Before a tag: versions, a committed tree, and the wheel in an empty environment
	.ci/release $(PYTHON)

chaos: $(READY)  ## Kill commands, damage files and edit inputs thousands of times; typed again, it goes on
	$(BIN)/python -m tests.chaos $(CHAOS)

bench: $(READY)  ## Measure speed and memory of the attentions against softmax and against no attention
	$(BIN)/python scripts/bench.py

docs: $(READY)  ## Rewrite the generated pages of docs/
	$(BIN)/python scripts/describe.py

site: $(READY)  ## Build the documentation as a site, outputs/site/index.html
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/python -m mkdocs build --strict --quiet

clean:  ## Remove the environment and caches; data and results stay
	rm -rf $(VENV) $(OLDEST) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
