# Two commands need nothing but Python 3.10 or newer, node and the package registries:
#   make demo   the first tutorial, run and printed
#   make test   the tests, without those that are slow; make test-all runs every test
# What they install goes into .venv, once; a stamp in it is renewed when pyproject.toml or
# constraints.txt is newer than it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
LAB := labextension
PY := $(VENV)/bin/python
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# Arguments for pytest and the notebook of the demo can be given: make test ARGS="-k wheel"
ARGS ?=
NOTEBOOK ?= notebooks/01_hello_mesh.ipynb

# Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each process would compile all that it
# imports, which takes longer than everything else that it does to begin.
COMPILE := $(PY) -m compileall -q runtime monarch_jupyter tests

LOCKS := pyproject.toml hatch_build.py $(wildcard constraints.txt)
LAB_SOURCES := $(wildcard $(LAB)/src/*.ts $(LAB)/style/* $(LAB)/schema/* $(LAB)/*.json $(LAB)/yarn.lock \
	monarch_jupyter/widgets/js/*.js monarch_jupyter/widgets/js/*.css)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- the two commands ---------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/.demo ## run the first tutorial and print what its cells show
	@$(COMPILE)
	@$(PY) scripts/show_notebook.py $(NOTEBOOK)

.PHONY: test
test: $(VENV)/.tests ## the tests, but for slow ones: runtime, notebook, packaging, browser, tutorials
	@$(if $(ARGS),$(PY) -m pytest $(ARGS),$(PY) scripts/run_tests.py --leave-out slow $$(scripts/system_packages.sh --leave-out))

.PHONY: test-all
test-all: $(VENV)/.tests ## every test, slow ones too
	@$(PY) scripts/run_tests.py $$(scripts/system_packages.sh --leave-out) $(ARGS)

# What each run of the tests begins with; no file of this name is written.
.PHONY: $(VENV)/.tests
$(VENV)/.tests: $(VENV)/.test $(VENV)/.labextension
	@scripts/system_packages.sh
	@$(COMPILE)
	@echo "== labextension: unit tests"
	@cd $(LAB) && jlpm test

# `make test-gpu GPU_PYTHON=python3` takes a Python that has torch, pytest and what pyproject.toml
# names already, as on a machine without a package registry.
GPU_PYTHON ?= $(PY)
.PHONY: test-gpu
test-gpu: $(if $(filter $(PY),$(GPU_PYTHON)),$(VENV)/.test) ## what needs a real GPU, in some minutes; says what it skips
	@PYTHONPATH=$(CURDIR)/runtime:$(CURDIR):$${PYTHONPATH:-} $(GPU_PYTHON) -m pytest -p no:cacheprovider \
		--timeout=300 tests/gpu tests/integration/rdma/test_gpu_contract.py -k "not fake" $(ARGS)

.PHONY: test-versions
test-versions: $(VENV)/.test $(VENV)/.labextension ## the wheel, with the newest and the lowest versions of its dependencies
	@$(PY) scripts/test_versions.py all

.PHONY: stress
stress: $(VENV)/.test $(VENV)/.labextension ## ten million messages, their order from twenty seeds, 500 deaths, 100,000 schedules of a link, a million malformed frames a socket
	@$(COMPILE)
	@MONARCH_STRESS_MESSAGES=10000000 MONARCH_ORDER_ROUNDS=20 MONARCH_RESPAWNS=500 \
		MONARCH_LINK_SCHEDULES=100000 MONARCH_TREE_SCHEDULES=5000 MONARCH_MISCHIEF=2 MONARCH_EXAMPLES=1000 $(PY) -m pytest -s \
		tests/integration/calls/test_stress.py tests/integration/calls/test_order_model.py \
		tests/integration/calls/test_casts.py \
		tests/fault/test_respawning.py tests/unit/net/state/test_link_schedules.py tests/unit/host/state/test_cast_tree.py \
		tests/unit/actor/supervise/state/test_supervision.py tests/unit/wire $(ARGS)
	@MONARCH_SOAK=5000 $(PY) -m pytest tests/integration/calls/test_soak.py $(ARGS)
	@MONARCH_TEST_TRANSFERS=5000 MONARCH_TEST_OWNER_DEATHS=1002 MONARCH_TEST_PULLS=1000 \
		$(PY) -m pytest tests/integration/rdma -k "leave_nothing or training_goes_on" $(ARGS)
	@MONARCH_TEST_BOTH_WAYS=1 $(PY) -m pytest tests/integration/rdma/test_softroce.py $(ARGS)
	@MONARCH_TEST_TRANSFERS=10000 MONARCH_TEST_OWNER_DEATHS=1000 \
		$(PY) -m pytest tests/integration/payloads/test_segments.py -k "leave_nothing" $(ARGS)
	@MONARCH_TEST_LONG_PAGES=1 $(PY) -m pytest tests/browser -m browser \
		-k "thousand_ranks or started_again" $(ARGS)
	@MONARCH_FLOODS=1 $(PY) -m pytest tests/fault/test_lost_hosts.py -k "floods or translated" $(ARGS)
	@MONARCH_FUZZ=1000000 MONARCH_MALFORMED=1000000 $(PY) -m pytest \
		tests/fuzz tests/unit/net/hosts/test_link_security.py $(ARGS)

# --- around them --------------------------------------------------------------------------------

.PHONY: check
check: $(VENV)/.test $(LAB)/node_modules/.yarn-state.yml ## lint, format, types, layers; Python and TypeScript
	@echo "== ruff"
	@ruff check .
	@ruff format --check .
	@echo "== pyright"
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 pyright
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 pyright -p tests
	@echo "== layers"
	@lint-imports --no-logo
	@echo "== notebooks"
	@$(PY) scripts/check_notebooks.py
	@echo "== labextension"
	@cd $(LAB) && jlpm check

.PHONY: lab
lab: $(VENV)/.test $(VENV)/.labextension ## JupyterLab on the tutorials
	@$(COMPILE)
	@$(PY) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) --notebook-dir=notebooks $(ARGS)

.PHONY: docs
docs: $(VENV)/.docs ## the documentation, in build/site; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet $(ARGS)

.PHONY: notebooks
notebooks: $(VENV)/.demo ## execute the tutorials and write their outputs into them
	@$(PY) scripts/execute_notebooks.py $(ARGS)

.PHONY: wheel
wheel: $(VENV)/.test ## the wheel, panel included, in dist/
	@rm -rf $(LAB)/dist
	@$(PY) -m hatchling build -t wheel

.PHONY: lock
lock: | $(PY) ## write constraints.txt anew, from pyproject.toml and the registry
	@$(PY) scripts/lock.py

.PHONY: clean
clean: ## remove .venv and all that was built
	@rm -rf $(VENV) build dist $(LAB)/build $(LAB)/node_modules $(LAB)/lib $(LAB)/dist $(LAB)/.yarn
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -rf .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# --- what they stand on -------------------------------------------------------------------------

$(PY):
	@scripts/make_venv.sh $(VENV)

$(VENV)/.demo: $(LOCKS) | $(PY)
	@scripts/install.sh notebooks
	@touch $@

$(VENV)/.test: $(LOCKS) | $(PY)
	@scripts/install.sh test,lab,debug
	@touch $(VENV)/.demo $@

$(VENV)/.docs: $(LOCKS) | $(PY)
	@scripts/install.sh docs
	@touch $@

$(LAB)/node_modules/.yarn-state.yml: $(LAB)/package.json $(LAB)/yarn.lock | $(VENV)/.test
	@echo "== labextension: node packages"
	@cd $(LAB) && jlpm install --immutable
	@touch $@

$(LAB)/dist/package.json: $(LAB)/node_modules/.yarn-state.yml $(LAB_SOURCES)
	@echo "== labextension: build"
	@cd $(LAB) && jlpm build:prod
	@touch $@

# A link: what is built next is seen by JupyterLab without another install.
$(VENV)/.labextension: $(LAB)/dist/package.json | $(VENV)/.test
	@mkdir -p $(VENV)/share/jupyter/labextensions
	@ln -sfn $(CURDIR)/$(LAB)/dist $(VENV)/share/jupyter/labextensions/monarch-jupyter
	@mkdir -p $(VENV)/etc/jupyter/jupyter_server_config.d
	@ln -sfn $(CURDIR)/$(LAB)/server/monarch_jupyter.json $(VENV)/etc/jupyter/jupyter_server_config.d/
	@touch $@
