# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test test-slow browser lint types clean

quickstart: $(VENV)/.installed
	$(BIN)/python -m ponder quickstart

test: $(VENV)/.installed-test browser lint types
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow

# The page is tested in a real browser: Debian's chromium, installed here where that is possible.
browser:
	@command -v chromium >/dev/null || { echo "installing chromium for the browser tests"; \
	  apt-get install -y -q chromium >/dev/null 2>&1 || { apt-get update -q && apt-get install -y -q chromium; } >/dev/null 2>&1; } \
	  || echo "chromium could not be installed: the browser tests will be skipped, and say so"

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.installed-test
	$(BIN)/mypy

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
