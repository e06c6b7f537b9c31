# The commands of this repository; `make help` lists them. All work in .venv, which the first one makes.

PYTHON ?= $(firstword $(foreach name,python3.11 python3,$(shell command -v $(name) 2>/dev/null)))
# More flags for pip, such as the index of a torch build without CUDA.
PIP_FLAGS ?=
# Tests that run side by side; some of them start up to four processes of their own.
JOBS ?= 2
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test slow lint format chromium detection notebooks clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: .venv/.installed  ## check a healthy and a faulty port of a trained model on two processes
	$(BIN)/validator demo

test: lint  ## lint, types and the tests
	$(BIN)/pytest -n $(JOBS) --dist worksteal --durations 20

slow: .venv/.installed  ## the tests that `make test` leaves out
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m slow

lint: .venv/.installed  ## formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.installed  ## format and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

chromium:  ## install the browser that the HTML page is tested in, on Debian and Ubuntu
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } || \
	    { echo "no Chromium could be installed: the tests in tests/browser will be skipped" >&2; exit 1; }

detection: .venv/.installed  ## every fault on every model; hours, can be interrupted and resumed
	$(BIN)/python benchmarks/detection.py --jobs $(JOBS)

notebooks: .venv/.installed  ## execute the notebooks and save what they show; their pictures need Chromium
	$(BIN)/python -m notebooks.execute

clean:  ## remove build products and caches, not .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name .venv -prune -o -name __pycache__ -prune -exec rm -rf {} +

# The stamp is newer than what decides which packages are installed; else the environment is brought up to date.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "validator needs Python 3.11 or newer, $(PYTHON) is older; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(PIP_FLAGS) -c constraints.txt -e ".[hf,notebook,dev]"
	@touch $@
