# Every target makes .venv by itself when it is missing, or older than what it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RESULTS ?= results

.PHONY: help study test test-slow lint format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make study      install, run the quickstart study (about 5 minutes on 2 cores), write its report"
	@echo "make test       install, run the tests"
	@echo "make test-slow  the tests of real parts: whole studies, killed processes, servers"
	@echo "make lint       ruff and mypy"
	@echo "make bench      speed and memory, as ratios against a named rival in the same run"
	@echo "make clean      remove what was built; results/ and .venv stay"

study: $(INSTALLED)
	@$(BIN)/interplay run quickstart --results "$(RESULTS)"

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile

# Side by side, because most of them wait for processes to start and end: studies; machines, then ranks; and at the lowest
# priority what only computes: simulated studies, the transfer of learning rates, and what presets come out as. With a
# fourth lane that starts Ray, Ray's own processes took longer to start on two cores than Ray waits for them. The quickstart
# comes last, when the others are done.
# Ray would run its workers at the priority 15, where they starve beside anything else.
COMPUTING := $(addprefix tests/,trainables/model/test_parametrisation_transfer.py trainables/train/test_induction.py \
  study/search/test_early_truth.py study/test_claims.py)
test-slow: export RAY_worker_niceness := 0
test-slow: $(INSTALLED)
	@mkdir -p build; status=0; slow="$(BIN)/python -m pytest -m slow"; \
	( first=0; nice -n 1 $$slow tests/cluster -rs --durations=12 || first=1; \
	  nice -n 1 $$slow tests/trainables tests/study/workers/test_gang.py $(COMPUTING:%=--ignore=%) --durations=6 && exit $$first ) > build/machines.log 2>&1 & machines=$$!; \
	nice -n 19 $$slow tests/analysis $(COMPUTING) -n 2 --dist loadfile -o timeout=2400 --durations=6 > build/analysis.log 2>&1 & simulated=$$!; \
	$$slow --ignore=tests/cluster --ignore=tests/trainables --ignore=tests/analysis \
	  --ignore=tests/study/workers/test_gang.py $(COMPUTING:%=--ignore=%) --durations=12 || status=1; \
	for lane in $$machines $$simulated; do wait $$lane || status=1; done; \
	cat build/machines.log build/analysis.log; exit $$status

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
