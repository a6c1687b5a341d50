# Every target makes .venv by itself when it is missing, or older than what it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RESULTS ?= results

.PHONY: help study test test-slow lint format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make study      install, run the quickstart study (about 7 minutes on 2 cores), write its report"
	@echo "make test       install, run the tests"
	@echo "make test-slow  the tests of real parts: whole studies, killed processes, servers"
	@echo "make lint       ruff and mypy"
	@echo "make bench      speed and memory, as ratios against a named rival in the same run"
	@echo "make clean      remove what was built; results/ and .venv stay"

study: $(INSTALLED)
	@$(BIN)/interplay run quickstart --results "$(RESULTS)"

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m slow

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m tests.bench

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Interplay needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	@echo "Installing into $(VENV): about 2 minutes and 2.3 GB, once."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
