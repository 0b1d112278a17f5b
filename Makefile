# Each target does its own set-up: a virtual environment in .venv, and nothing outside of it.
#
#   make demo               the access review, killed and taken over, on SQLite
#   make demo DB=postgres   the same on a PostgreSQL server of its own
#   make test               everything that must hold before a change lands
#
# ARGS passes options on: make test ARGS="tests/unit -k fold"

PYTHON ?= python3
DB     ?= sqlite
ARGS   ?=

VENV  := .venv
BIN   := $(VENV)/bin
LOCK  := requirements/constraints.txt
READY := $(VENV)/.ready

ifeq ($(filter sqlite postgres,$(DB)),)
$(error DB is sqlite or postgres, not "$(DB)")
endif

.PHONY: help demo test lint format crash-points conformance fuzz bench lock clean
.DELETE_ON_ERROR:

help:
	@sed -n '3,5s/^# \{0,1\}//p' Makefile
	@echo "  make lint | format | crash-points | conformance | fuzz | bench | lock | clean"

demo: $(READY)-$(DB)
	@$(BIN)/python -m examples.access_review.demo --db $(DB) $(ARGS)

test: lint
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(wildcard src tests examples bench)
	$(BIN)/lint-imports --no-logo

format: $(READY)-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crash-points: $(READY)-dev
	$(BIN)/python -m pytest -m crash_points $(ARGS)

# ACTS names the folder of the protocol's conformance tests, which are not part of the project.
# OIDC names one in which `npm install oidc-provider@9` was said: then its tokens are tried too.
# JS names one in which `npm install @a2a-js/sdk@1` was said: then that client is tried.
# PROXIES lists programs (nginx haproxy caddy traefik envoy): two gateways are tried behind each.
conformance: $(READY)-dev
	@$(if $(ACTS),ACTS='$(ACTS)') $(BIN)/python -m tests.conformance $(ARGS)
	$(if $(PROXIES),@PROXIES='$(PROXIES)' $(BIN)/python -m pytest -q tests/conformance/test_proxies.py)
	$(if $(JS),@JS='$(abspath $(JS))' $(BIN)/python -m pytest -q tests/conformance/test_js.py)
	$(if $(OIDC),@OIDC='$(abspath $(OIDC))' $(BIN)/python -m pytest -q tests/conformance/test_oidc.py)

# Asks gateways odd things and prints with which seed: make fuzz ARGS="--minutes 30 --seed 7"
fuzz: $(READY)-dev
	$(BIN)/python -m tests.fuzz $(ARGS)

bench: $(READY)-dev
	$(BIN)/python -m bench $(ARGS)

# Keeps the versions of uv.lock where pyproject.toml still allows them; UPGRADE=1 moves all of them.
# pip reads the exported list as constraints, so that a machine's own package index works too.
lock: $(READY)-lock
	@$(BIN)/uv lock --quiet --python $(BIN)/python $(if $(UPGRADE),--upgrade)
	@! grep -oE '(https?|file)://[^/"]*/' uv.lock | sort -u \
	  | grep -vxE 'https://(pypi|files\.pythonhosted)\.org/' \
	  || { echo "outlast: uv.lock names the index above; lock against pypi.org" >&2; exit 1; }
	@{ echo "# Written by \`make lock\` from uv.lock."; \
	  $(BIN)/uv export --quiet --frozen --all-extras --no-emit-project --no-hashes --no-annotate \
	    --no-header --python $(BIN)/python; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt $(LOCK)
	@echo "outlast: wrote uv.lock and $(LOCK)"

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- Set-up -----------------------------------------------------------------------------------

PIP := $(BIN)/python -m pip -qq --disable-pip-version-check

$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "outlast: \"$(PYTHON)\" is not Python 3.11 or newer;" \
	    "name one that is: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(READY)-sqlite: WHAT = .
$(READY)-postgres: WHAT = .[postgres,postgres-server]
$(READY)-dev: WHAT = .[dev]

$(READY)-sqlite $(READY)-postgres $(READY)-dev: $(READY) pyproject.toml $(LOCK)
	@echo "outlast: installing $(WHAT) into $(VENV) (a minute, the first time)"
	@$(PIP) install --constraint $(LOCK) --editable '$(WHAT)'
	@touch $@

$(READY)-lock: $(READY)
	@echo "outlast: installing uv into $(VENV)"
	@$(PIP) install uv
	@touch $@
