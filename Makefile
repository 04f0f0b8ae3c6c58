# Python 3.11 when there is one that runs, else python3; `make setup PYTHON=/path/to/python` overrides.
PYTHON ?= $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null || echo python3)
BIN := .venv/bin
RIVALS := .venv-rivals/bin
STAMP := .venv/.installed
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup demo blocking format lint types layers chromium quick test coverage soak mutants bench scale rivals pictures docs pythons lock rivals-lock clean
unexport PYTHONWARNINGS # what counts as an error is said in pyproject.toml alone
unexport PYTHONDONTWRITEBYTECODE # without bytecode, each of the hundreds of processes that the tests start compiles Stepwell again
PYTEST := $(BIN)/pytest -n 2 --dist worksteal

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## create .venv with the versions of locks/dev.txt

$(STAMP): locks/dev.txt pyproject.toml
	@echo "==> set-up: .venv from locks/dev.txt" >&2
	@$(PYTHON) -c 'import sys; found = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and \
	    f"Stepwell needs Python 3.11 or newer, found {found}; try PYTHON=/path/to/python")'
	@$(PYTHON) -m venv .venv
	@$(PIP_INSTALL) --require-hashes --no-deps -r locks/dev.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## run the demonstration
	@$(BIN)/python -m stepwell.demo

blocking: $(STAMP) ## generate src/stepwell/app/blocking from app/awaited
	@$(BIN)/python -m tools.generate_blocking

format: $(STAMP) ## rewrite the code in the common format
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

lint: $(STAMP) ## ruff: format and rules
	@echo "==> lint: ruff, format and rules"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

types: $(STAMP) ## basedpyright: strict types of src
	@echo "==> types: basedpyright, strict, on src"
	@$(BIN)/basedpyright

layers: $(STAMP) ## import-linter: imports go down the layers only
	@echo "==> layers: import-linter, contracts in pyproject.toml"
	@$(BIN)/lint-imports --no-cache --no-logo

quick: lint types layers ## lint, types, layers, and the tests in memory without faults: two minutes
	@echo "==> quick: unit, conformance and acceptance tests on the store in memory"
	@$(PYTEST) --quiet --stores memory tests/unit tests/conformance tests/acceptance

chromium: ## the browser of the dashboard's tests: Debian's, installed where that can be done here
	@command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable || { \
	    test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "==> set-up: chromium from Debian" >&2 && \
	    export DEBIAN_FRONTEND=noninteractive && \
	    { apt-get install -qq -y --no-install-recommends chromium fonts-liberation >/dev/null 2>&1 || \
	        { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-liberation >/dev/null; }; }; } || \
	    echo "no Chromium: the browser tests will fail; run: sudo apt-get install -y chromium" >&2

test: lint types layers chromium ## everything that must pass: lint, types, layers, and all tests on all stores
	@echo "==> test: all tests on all stores"
	@$(PYTEST) || { echo "==> test: what failed runs once more, alone; what passes only now is a fault to mend, see CONTRIBUTING.md"; \
	    $(BIN)/pytest --last-failed --last-failed-no-failures none --maxfail 1; }

coverage: $(STAMP) chromium ## all tests, measuring branch coverage; fails below the limit in pyproject.toml
	@echo "==> coverage: all tests on all stores, with branch coverage"
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -n 2 --dist worksteal
	@find . -maxdepth 1 -name '.coverage.*' ! -name '*.H*h' -delete # unfinished: their process was killed
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

soak: $(STAMP) ## simulation, models, properties and random kills with ten times the examples, new ones each time
	@echo "==> soak: simulation, models, properties and random kills"
	@$(PYTEST) --hypothesis-profile=soak --timeout 3600 $(SOAK)

SOAK := tests/simulation/test_seeds.py tests/faults/test_random_kills.py \
    tests/conformance/test_stores.py::test_store_does_what_its_plain_model_does \
    tests/conformance/test_stores.py::test_leases_and_locks_do_what_their_plain_model_does \
    tests/conformance/test_queue.py::test_queue_does_what_its_plain_model_does \
    tests/unit/kernel/test_properties.py tests/unit/kernel/test_exploration_properties.py

mutants: $(STAMP) ## small mistakes in model/ and stores/, and whether tests notice them, as JSON lines (half an hour)
	@$(BIN)/python -m tools.mutants $(MUTANTS_ARGS)

bench: $(STAMP) ## benchmarks, as JSON lines
	@$(BIN)/python -m benchmarks

scale: $(STAMP) ## the queue with a million items, as JSON lines
	@$(BIN)/python -m benchmarks.scale $(SCALE_ARGS)

rivals: .venv-rivals/.installed ## Stepwell beside DBOS, LangGraph and queues, as JSON lines (RIVALS_ARGS="--quick --only steps")
	@$(RIVALS)/python -m benchmarks.rivals $(RIVALS_ARGS)

.venv-rivals/.installed: benchmarks/rivals/rivals.txt pyproject.toml
	@echo "==> set-up: .venv-rivals from benchmarks/rivals/rivals.txt" >&2
	@$(PYTHON) -m venv .venv-rivals
	@$(RIVALS)/python -m pip install -qq --disable-pip-version-check --require-hashes --no-deps -r benchmarks/rivals/rivals.txt
	@$(RIVALS)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

pictures: $(STAMP) chromium ## draw the demonstration, the workflows of docs/examples.md and the dashboard again
	@STEPWELL_TOUR=docs/pictures $(BIN)/pytest -q tests/browser/test_tour.py
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tools.draw_terminal stepwell demo > docs/pictures/demo.svg.new
	@mv docs/pictures/demo.svg.new docs/pictures/demo.svg
	@$(BIN)/stepwell draw examples/approval.yaml -o docs/pictures/approval.svg
	@$(BIN)/stepwell draw examples/nightly_import.py -o docs/pictures/nightly_import.svg
	@$(BIN)/stepwell draw examples/reviewers.py -o docs/pictures/reviewers.svg
	@$(BIN)/stepwell draw examples/vending_machine.py -o docs/pictures/vending_machine.svg

docs: $(STAMP) ## build the documentation as a site with search: build/site/index.html; a broken link fails
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "==> docs: build/site/index.html"

pythons: $(STAMP) ## the quick tests on every Python from 3.11 to 3.14 that is here or that uv can bring (PYTHONS="3.12 3.13")
	@$(BIN)/python -m tools.pythons $(PYTHONS)

lock: ## resolve locks/dev.txt again (newest versions: LOCK_ARGS=--upgrade)
	@test -x $(BIN)/uv || { $(PYTHON) -m venv .venv && $(PIP_INSTALL) uv; }
	@$(BIN)/uv pip compile pyproject.toml --group dev --all-extras --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-emit-index-url --quiet --output-file locks/dev.txt $(LOCK_ARGS)
	@! grep -nE '://|--(index|extra-index|find-links)' locks/dev.txt

rivals-lock: $(STAMP) ## resolve benchmarks/rivals/rivals.txt again
	@$(BIN)/uv pip compile benchmarks/rivals/rivals.in pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-emit-index-url --quiet --output-file benchmarks/rivals/rivals.txt $(LOCK_ARGS)
	@! grep -nE '://|--(index|extra-index|find-links)' benchmarks/rivals/rivals.txt

clean: ## remove .venv, .venv-rivals, caches and build results
	@rm -rf .venv .venv-pythons .venv-rivals .coverage .coverage.* .hypothesis .pytest_cache .ruff_cache .import_linter_cache build dist htmlcov
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
