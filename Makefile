# The commands for contributors. `make` without arguments lists them.

PYTHON ?= python3
JOBS ?= 2
# More workers than processors, because many tests wait for other processes.
WORKERS ?= 4

BIN := .venv/bin
INSTALLED := .venv/.installed
# Flower needs older packages than the rest, so its tests run in an environment of their own.
FLOWER := .venv-flower/.installed

# Tests start hundreds of Python processes. With bytecode files, each module is compiled only once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check collect format lint types imports links generated figures browser postgres axe flower test fast soak extras package tagged sbom vulnerabilities mutants leaks demo picture site docs bench clean

help:
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

$(INSTALLED): pyproject.toml constraints/dev.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 or later, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $$($(PYTHON) --version 2>&1) is too old: checkins needs 3.11 or later, say make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Installing into .venv (once, and whenever the dependencies change) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints/dev.txt -e '.[dev]'
	@touch $@

$(FLOWER): pyproject.toml constraints/flower.txt $(INSTALLED)
	@echo "Installing Flower into .venv-flower (once, and whenever the dependencies change) ..."
	@test -x .venv-flower/bin/python || $(BIN)/python -m venv .venv-flower
	@.venv-flower/bin/python -m pip install -qq --disable-pip-version-check --no-compile -c constraints/flower.txt -e '.[dev-flower]'
	@touch $@

setup: $(INSTALLED)  ## create .venv from the pinned versions and install git hooks
	@if [ -z "$$CI" ] && [ -e .git ]; then git config core.hooksPath hooks; fi

check: $(INSTALLED)  ## check format, lint, types, imports, links, generated docs
	@$(MAKE) --no-print-directory --jobs=$(JOBS) $(CHECKS)

CHECKS := types generated format lint imports links figures
format: ; @$(BIN)/ruff format --check --quiet .
lint: ; @$(BIN)/ruff check --quiet .
types: ; @$(BIN)/mypy --no-error-summary
imports: ; @$(BIN)/lint-imports --no-logo
links: ; @$(BIN)/python tools/links.py
generated: ; @$(BIN)/python tools/generated.py --check
figures: ; @$(BIN)/python tools/figures.py --check
# Compiles the tests once. Otherwise, in a fresh clone, every worker would compile all of them.
collect: ; @$(BIN)/pytest -qq --collect-only >/dev/null

browser:  ## find chromium for the tests of pages, or install it
	@bash tools/chromium.sh

postgres:  ## find PostgreSQL for the tests of the service, or install it
	@bash tools/postgres.sh

axe:  ## find axe-core for the tests of accessibility, or fetch it with npm
	@bash tools/axe.sh

flower: $(FLOWER)  ## the tests of checkins.flower, in an environment of their own
	@.venv-flower/bin/pytest -q -n $(JOBS) tests/flower src/checkins/flower

test: $(INSTALLED) $(FLOWER) browser postgres axe  ## make check, then all tests; warnings are errors
	@$(MAKE) --no-print-directory --jobs=$(JOBS) collect $(CHECKS)
	@$(BIN)/pytest -q -n $(WORKERS)
	@$(MAKE) --no-print-directory flower

fast: $(INSTALLED)  ## the fast tests of campaigns, ledgers, machines and accountant, in half a minute
	@HYPOTHESIS_PROFILE=fast $(BIN)/pytest -q -n $(JOBS) -m "not slow" tests/campaign tests/ledger tests/protocol tests/accounting

soak: $(INSTALLED) browser postgres axe  ## long tests: 10,000 histories, 200 kills, 20,000 hostile requests, extras
	@CHECKINS_SEEDS=10000 HYPOTHESIS_PROFILE=soak $(BIN)/pytest -q -n $(WORKERS) tests/protocol tests/randomizers
	@CHECKINS_SOAK=1 HYPOTHESIS_PROFILE=soak $(BIN)/pytest -q tests/client tests/service
	@CHECKINS_SOAK=1 $(BIN)/pytest -q -n $(WORKERS) tests/accounting tests/planning tests/simulation tests/tasks tests/cli tests/examples tests/audit tests/golden tests/tools tests/package
	@CHECKINS_SOAK=1 $(MAKE) --no-print-directory flower
	@$(MAKE) --no-print-directory extras

extras: $(INSTALLED)  ## install each extra alone in a fresh environment and try it, in some minutes
	@$(BIN)/python tools/extras.py

package: $(INSTALLED)  ## build the sdist and the wheel in dist/, and check them with twine
	@$(BIN)/python tools/release.py package

tagged: $(INSTALLED)  ## check that TAG=v1.2.3 is the version of the package and of the changelog
	@$(BIN)/python tools/release.py tagged "$(TAG)"

sbom: $(INSTALLED)  ## write the bill of materials of all extras, in CycloneDX's format, in dist/
	@$(BIN)/python tools/release.py sbom

vulnerabilities: $(INSTALLED)  ## look up known vulnerabilities of all pinned versions
	@$(BIN)/python tools/release.py vulnerabilities

mutants: $(INSTALLED) $(FLOWER)  ## plant known bugs one by one; check that the tests find each
	@$(BIN)/python tools/mutants.py

leaks: $(INSTALLED)  ## plant leaks one by one; check that the audit finds each
	@$(BIN)/python tools/leak_mutants.py

demo: $(INSTALLED)  ## run a coordinator and 5,000 devices, in two and a half minutes
	@$(BIN)/python examples/demo.py

picture: $(INSTALLED) browser  ## take the picture of the live page in README.md, in two minutes
	@$(BIN)/python -m tools.picture

site: $(INSTALLED)  ## build the documentation in build/site/html, in seconds, and check its links
	@$(BIN)/python -m tools.site

docs: $(INSTALLED)  ## fill generated blocks, build the site, run all code blocks
	@$(BIN)/python tools/tutorial.py
	@$(BIN)/python -m tools.notebooks
	@$(BIN)/python tools/generated.py
	@$(BIN)/python tools/links.py
	@$(BIN)/python -m tools.site
	@$(BIN)/pytest -q tests/docs

bench: $(INSTALLED)  ## compare with alternatives and write bench/RESULTS.md
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints/dev.txt -e '.[bench]'
	@$(BIN)/python -m bench

clean:  ## remove .venv, caches and outputs
	@rm -rf .venv .venv-flower out build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests tools examples bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
