# Two commands on a fresh machine: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Where to take PyTorch from, where not from pip's own index: the CPU build is a tenth of the one for CUDA.
TORCH_INDEX ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt

.PHONY: docs quickstart test test-slow test-portable soak browser lint types clean same-python

quickstart: $(VENV)/.installed
	$(BIN)/python -m ponder quickstart

test: $(VENV)/.installed-test browser lint types
	$(BIN)/python -m pytest -n 2 -m "not slow"
	$(BIN)/python -m tests.support.portable --short

# The numerical tests as if on other processors: about two minutes on two cores; `make test` has a short form, in one.
test-portable: $(VENV)/.installed-test
	$(BIN)/python -m tests.support.portable

# Faults, fuzzed inputs and vanishing clients, seeded and counted: docs/reliability.md. In hours: SOAK=8 for a night.
SOAK ?= 0.1
soak: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.soak --hours $(SOAK)

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow

# site/index.html: these pages with a search that needs no server.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m tools.site

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

# Asked for another Python than the one that made the environment, say so instead of using that one silently.
same-python:
	@test "$(origin PYTHON)" = file || test ! -e $(BIN)/python || test "$$($(BIN)/python -V)" = "$$($(PYTHON) -V)" || \
	  { echo "$(VENV) was made by $$($(BIN)/python -V), not $$($(PYTHON) -V): make clean first, or give another VENV"; exit 1; }

$(BIN)/python: | same-python
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt | same-python
	@echo "installing PyTorch into $(VENV): about 200 MB for the CPU build; gigabytes for CUDA's, which Linux gets unless TORCH_INDEX is set"
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) --editable '.[test]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .hypothesis
