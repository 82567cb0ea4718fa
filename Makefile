# Needs make and Python 3.11 or newer; everything else goes into .venv. `make help` lists the targets.

VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTHON ?=
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help train test format clean
.DELETE_ON_ERROR:

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Options: ARGS=\"--seed 1 --agents 20\" for train, PYTHON=/path/to/python for the first install."

train: $(VENV)/.installed ## MFPO with 10 agents on CartPole: a learning curve and a policy under runs/
	$(BIN)/mfpo train CartPole-v1 --agents 10 $(ARGS)

test: $(VENV)/.installed-dev ## format, lint, types, tests, doctests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow" $(ARGS)

format: $(VENV)/.installed-dev ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and every cache; runs/ stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The first interpreter that answers and is new enough. A name on the PATH may be a stub that only fails, so each is run.
$(BIN)/python:
	@for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "making $(VENV) with $$("$$python" --version)"; \
	    exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo "mfpo needs Python 3.11 or newer, and none was found; install one, or name it: make PYTHON=/path/to/python" >&2; \
	exit 2

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing mfpo (a few hundred MB the first time)"
	@$(PIP) --editable '.[plot,play]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing mfpo and its checks (a few hundred MB the first time)"
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed
