PYTHON ?= python
PYTEST_FLAGS ?=
BENCH_FLAGS ?=
ARRAY_API_TESTS ?= ../array-api-tests
ARRAY_API_FLAGS ?= --max-examples=50

.DEFAULT_GOAL := help
.PHONY: help setup tiny test check format bench docs rows arrayapi

help: ## Show this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: ## Install Stratal for development into the current environment
	$(PYTHON) -m pip install -e '.[dev]'

tiny: ## Run the quick tests only (a minute): every subsystem, and a compiled training step
	$(PYTHON) -m pytest -q -x -m quick

test: ## Run every test
	$(PYTHON) -m pytest $(PYTEST_FLAGS)

check: ## Lint, check types (strict for tiers 0-5), check the tier rule
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q tests/contract/test_tiers.py

format: ## Sort imports and apply the safe fixes of the linter
	$(PYTHON) -m ruff check --fix .

bench: ## Measure against every peer that is installed (long); BENCH_FLAGS='--only mlp --rounds 3' for less
	$(PYTHON) -m benchmarks run --suite train,forward,kernels $(BENCH_FLAGS)

docs: ## Renew what the documentation shows of the code, run its examples and the tour, build the site (build/site)
	$(PYTHON) tests/support/doc_examples.py
	$(PYTHON) tests/support/doc_pages.py
	$(PYTHON) docs/generate/pictures.py
	$(PYTHON) docs/generate/first_screen.py
	$(PYTHON) docs/tour.py > /dev/null
	$(PYTHON) -m mkdocs build --strict

arrayapi: ## Run data-apis/array-api-tests, a clone of which stands in ARRAY_API_TESTS (ten minutes)
	cd $(ARRAY_API_TESTS) && ARRAY_API_TESTS_MODULE=stratal ARRAY_API_TESTS_VERSION=2024.12 $(PYTHON) -m pytest -q \
		--disable-deadline --xfails-file=$(CURDIR)/tests/support/array_api_expected_failures.txt $(ARRAY_API_FLAGS) array_api_tests

rows: ## Run the tests that show a row of the mission and print the table
	$(PYTHON) -m pytest -q --rows
