# Every target makes .venv by itself when it is missing, or older than what it is made from: `study` with what a study needs,
# the others with the development tools too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUDY := $(VENV)/.study
INSTALLED := $(VENV)/.installed
RESULTS ?= results

.PHONY: help study evidence evidence-families test test-gate test-all test-gpu fuzz lint format bench bench-gpu clean
.DEFAULT_GOAL := help

help:
	@echo "make study      install, run the quickstart study (5 to 11 minutes on 2 cores), write its report"
	@echo "make evidence   fetch 6 MB of English text, train 1 to 8 layers on it (an hour on 2 cores), write its report"
	@echo "make evidence-families   GPT-2 and Llama blocks on the same text (half an hour on 2 cores)"
	@echo "make test       install, run the fast tests (2 to 6 minutes)"
	@echo "make test-gate  the slow tests of the gate: whole studies, killed processes, servers (10 to 20 minutes)"
	@echo "make test-all   all tests, also simulated clouds, coverage and presets (90 minutes)"
	@echo "make fuzz       an hour of hostile specs, overrides and run tables"
	@echo "make lint       ruff and mypy"
	@echo "make bench      speed and memory, as ratios against a named rival in the same run"
	@echo "make test-gpu   the trainer on one GPU (10 minutes on a card of 16 GB)"
	@echo "make bench-gpu  measure one GPU (25 minutes on an H100), docs/gpu.md"
	@echo "make clean      remove what was built; results/ and .venv stay"

study: $(STUDY)
	@$(BIN)/interplay run quickstart --results "$(RESULTS)"

# The text is in the source distribution of Django, which pip fetches.
EVIDENCE := build/evidence
$(EVIDENCE)/django-5.2.8: $(STUDY)
	@test -d $@ || { $(BIN)/python -m pip download -q --no-deps --no-binary :all: -d $(EVIDENCE) \
	  django==5.2.8 && tar -xzf $(EVIDENCE)/django-5.2.8.tar.gz -C $(EVIDENCE); }
evidence: $(EVIDENCE)/django-5.2.8
	@$(BIN)/interplay run docs/evidence/study.yaml --results "$(RESULTS)"
evidence-families: $(EVIDENCE)/django-5.2.8
	@for network in gpt2 llama; do $(BIN)/interplay run docs/evidence/families.yaml training.network=$$network \
		name=families-network-$$network --results "$(RESULTS)" || exit; done
	@$(BIN)/interplay compare families-network-gpt2 families-network-llama --results "$(RESULTS)" --out build/evidence/families

# Ray would start its workers at niceness 15, where they get no CPU time beside other work.
test test-gate test-all fuzz: export RAY_worker_niceness := 0
# The files that took longest begin (tests/data/durations.json), and each tier writes its times. The slow tests wait more than
# they compute: on two cores two processes use 58 % of them.
PYTEST := $(BIN)/python -m pytest --no-loadscope-reorder --durations=10

# $(1) tests that match $(2), with options $(3). A busy machine can fail a test: what failed runs once more, alone, and the
# target fails if it fails again. A cache of its own, emptied before, holds what failed; any other end of pytest than failed
# tests (status 1, each with a "::" in its name) is final.
define tests
	@$(PYTEST) -m "$(2)" $(3) -o cache_dir=build/tests/$(1)-cache --cache-clear --junitxml=build/tests/$(1).xml $(TESTS); status=$$?; \
	  [ $$status -eq 1 ] && grep -q '::' build/tests/$(1)-cache/v/cache/lastfailed || exit $$status; \
	  echo "Tests failed, see above. They run once more, one at a time; the summary at the end names each of them:"; \
	  $(PYTEST) -m "$(2)" -n 0 -o cache_dir=build/tests/$(1)-cache --lf --lfnf=none -rap --junitxml=build/tests/$(1)-again.xml $(TESTS)
endef

test: $(INSTALLED)
	$(call tests,fast,not slow and not extended,-n 2 --dist worksteal --durations-min=2)

test-gate: $(INSTALLED)
	$(call tests,gate,slow and not extended,-n 3 --dist loadfile)

test-all: test test-gate
	$(PYTEST) -n 3 -m extended --dist loadfile -o timeout=3600 --junitxml=build/tests/extended.xml

HAS_GPU := $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'
test-gpu: $(INSTALLED)
	@if $(HAS_GPU); then $(PYTEST) tests/test_gpu_stages.py; else echo "This machine shows torch no GPU: nothing to test."; fi

fuzz: $(INSTALLED)
	INTERPLAY_FUZZ_SECONDS=3600 $(BIN)/python -m pytest -m extended -s tests/test_fuzz.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

bench-gpu: $(INSTALLED)
	@$(BIN)/python -m benchmarks.gpu build/gpu.json --seconds 1500

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

# Installs Interplay with the extras $(1).
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Interplay needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ...")'
	@echo "Installing into $(VENV): about 2 minutes, once."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.$(1)'
endef

$(STUDY): pyproject.toml constraints.txt
	$(call install,[train])
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt
	$(call install,[dev])
	@touch $(STUDY) $@
