# Everything runs from the repository's root, in environments of its own: .venv, and .venv-oracle
# for `make verify`. Nothing is installed outside them, and the project itself is never installed.

PYTHON ?= python3
ORACLE_PYTHON ?= $(PYTHON)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
export NO_MKDOCS_2_WARNING = 1

python := .venv/bin/python
oracle := .venv-oracle/bin/python
schema := .venv/bin/check-jsonschema --quiet --builtin-schema
pip := -m pip install -qq --disable-pip-version-check --no-input

# What is wrong with a Python, in one line, or nothing.
fault = $(shell \
    command -v $(1) >/dev/null || { echo "there is no $(1); name one: make $(2)=/path/to/python3.11"; exit; }; \
    $(1) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
        || { echo "$(1) is older than Python 3.11; name a newer one: make $(2)=/path/to/python3.11"; exit; }; \
    $(1) -c 'import ensurepip, venv' 2>/dev/null \
        || echo "$(1) has no venv; install python3-venv (apt-get install python3-venv)")
need = $(if $(call fault,$(1),$(2)),$(error $(call fault,$(1),$(2))))

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environments: made once, and again when a lock changes --------------------------------------

.venv/made:
	@$(call need,$(PYTHON),PYTHON)
	@echo "Setting up .venv ..."
	@$(PYTHON) -m venv --clear .venv
	@touch $@

.venv/site: .venv/made requirements/site.txt
	@$(python) $(pip) --require-hashes -r requirements/site.txt
	@touch $@

.venv/node: .venv/site requirements/node.txt package-lock.json
	@$(python) $(pip) --require-hashes -r requirements/node.txt
	@PATH="$(CURDIR)/.venv/bin:$$PATH" npm ci --silent --ignore-scripts
	@touch $@

.venv/test: .venv/node requirements/test.txt
	@$(python) $(pip) --require-hashes -r requirements/test.txt
	@touch $@

.venv/properdocs: .venv/test requirements/properdocs.txt
	@$(python) $(pip) --require-hashes -r requirements/properdocs.txt
	@touch $@

.venv/browser: .venv/test requirements/browser.txt
	@$(python) $(pip) --require-hashes -r requirements/browser.txt
	@touch $@

.venv-oracle/made:
	@$(call need,$(ORACLE_PYTHON),ORACLE_PYTHON)
	@echo "Setting up .venv-oracle with torch: its build for GPUs is a download of several GB."
	@$(ORACLE_PYTHON) -m venv --clear .venv-oracle
	@$(oracle) $(pip) torch==2.13.0
	@touch $@

.venv-oracle/oracle: .venv-oracle/made requirements/oracle.txt requirements/frameworks.txt
	@DS_BUILD_OPS=0 $(oracle) $(pip) --no-deps --require-hashes -r requirements/oracle.txt
	@$(oracle) $(pip) --no-deps --require-hashes -r requirements/frameworks.txt
	@touch $@

# --- what a reader of this file came for -----------------------------------------------------------

.PHONY: setup site serve
setup: .venv/test ## Make .venv with all that the site and its tests need

site: .venv/node ## Build the site into site/
	@$(python) -m mkdocs --quiet build --strict
	@echo "The site is in site/; the first page is site/index.html"

serve: .venv/node ## Serve the site on 127.0.0.1:8000 and rebuild it at each change
	@$(python) -m mkdocs serve --no-strict

.PHONY: test lint format check numbers golden bench
test: .venv/test ## Run every example, test and check of the built site
	@$(python) -m pytest -q

lint: .venv/test ## Check style, types, the workflow and its schema
	@$(python) -m ruff check
	@$(python) -m ruff format --check
	@$(python) -m mypy
	@.venv/bin/zizmor --offline --quiet --pedantic .github
	@$(schema) vendor.github-workflows .github/workflows/*.yml
	@$(schema) vendor.dependabot .github/dependabot.yml
	@$(schema) vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	@$(schema) vendor.citation-file-format CITATION.cff

format: .venv/test ## Put the code into its form
	@$(python) -m ruff check --fix
	@$(python) -m ruff format

check: lint site test ## All that a pull request must pass: lint, types, strict build, tests

numbers: .venv/site ## Rewrite the stale numbers in the prose, saying old → new
	@$(python) -m calc check --fix README.md CONTRIBUTING.md $(shell find docs -name '*.md' -o -name '*.ipynb')

golden: .venv/test ## Keep what the executed blocks print now, the published configs and the ledgers
	@$(python) -m tests.examples
	@$(python) -m tests.test_configs
	@$(python) -m tests.test_kept

bench: .venv/node ## Measure the build, the command line and the estimates
	@$(python) -m tests.bench

MUTANTS ?= 300

.PHONY: coverage fuzz mutation
coverage: .venv/test ## Measure which branches of calc the tests take, and expect 98 %
	@COVERAGE_FILE=.venv/coverage $(python) -m coverage run --branch --source=calc -m pytest -q --ignore=tests/pages
	@COVERAGE_FILE=.venv/coverage $(python) -m coverage report --skip-covered --show-missing --fail-under=98

fuzz: .venv/test ## Ask 100,000 hostile questions, and expect no traceback, hang or swelling
	@$(python) -m tests.fuzz --count 100000 --seconds 3600

mutation: .venv/test ## Plant 300 (MUTANTS) small faults in the arithmetic, and expect a test to fail for 90 %
	@$(python) -m tests.mutation --sample $(MUTANTS)

.PHONY: properdocs
properdocs: .venv/properdocs ## Build the same site with ProperDocs and compare every number
	@$(python) -m tests.properdocs

.PHONY: social
social: .venv/browser ## Draw the picture that other sites show beside a link
	@$(python) -m site_build.social

.PHONY: test-planted test-browser verify verify-quick
test-planted: .venv/test ## Plant faults in a scratch copy and expect the alarm
	@$(python) -m pytest -q -m planted

test-browser: .venv/browser ## Open the built site in Chromium
	@$(python) -m pytest -q -m browser tests/browser -W default

verify: .venv-oracle/oracle ## Compare calc with what the real frameworks allocate (installs torch)
	@$(oracle) -m pytest -q -W default -o addopts= -m oracle tests/oracle

verify-quick: .venv-oracle/oracle ## The part of verify that takes about two minutes
	@$(oracle) -m pytest -q -W default -o addopts= -m "oracle and quick" tests/oracle

.PHONY: lock clean
lock: ## Resolve requirements/*.in again (needs uv on the path)
	@cd requirements && for name in site node test browser oracle frameworks; do \
	    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	        --no-emit-index-url --no-header $$(test $$name = oracle && echo --override oracle-override.txt) \
	        $$(test $$name = frameworks && echo --no-deps) \
	        $$name.in -o $$name.txt || exit 1; done

clean: ## Remove what the other targets made
	@rm -rf .venv .venv-oracle node_modules site .pytest_cache .mypy_cache .ruff_cache .hypothesis
