# Each target makes the virtual environment it needs; a second call finds it ready.
#
#   make train ARGS='--max-steps 20'         options for the script that the target runs
#   make train PYTHON=/opt/python3.12/bin/python3
#   make train VENV=~/envs/cuda              an environment of your own; a torch already in it is kept
#   make train TORCH='torch==2.13.0 --index-url URL'   another build of torch

VENV  ?= .venv
TORCH ?=
ARGS  ?=

PY     := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
# constraints.txt with the version of torch that is really there.
PINS   := $(STAMPS)/constraints.txt
PIP    := $(PY) -m pip
CHECKS := src tests recipes benchmarks examples
SITE   := NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs
SMOKE  := expecttest hypothesis pytest pytest-xdist transformers

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PIP_NO_INPUT := 1

SUITABLE := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))
PINNED_TORCH = $(shell grep '^torch==' constraints.txt)

.PHONY: help train recipes test thorough smoke smoke-environment lint types docs docs-serve docs-test docs-operators wheel-test bench bench-gpu format clean distclean FORCE

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 20

train: $(STAMPS)/recipes ## train the getting-started model
	@$(PY) recipes/getting_started/train.py $(ARGS)

recipes: $(STAMPS)/recipes ## install what the recipes need; then $(PY) recipes/…
	@echo "the recipes' packages are in $(VENV): source $(VENV)/bin/activate, or $(PY) recipes/bert/run_glue.py --help"

test: $(STAMPS)/dev ## run the tests, the examples in the documents among them
	@$(PY) -m pytest -n auto --dist worksteal $(ARGS)

thorough: $(STAMPS)/dev ## run what takes too long for each commit, part by part (ARGS=--list)
	@$(PY) -m tests.thorough $(ARGS)

smoke: $(STAMPS)/smoke ## try ontrain on another torch, in a minute: make smoke VENV=.venv-other TORCH=torch==2.15.0 [LOWEST=1]
	@PYTHONPATH=$(CURDIR)/src $(PY) -m pytest -q -n auto --all-cases @tests/smoke.txt $(ARGS)

smoke-environment: $(STAMPS)/smoke

lint: $(STAMPS)/dev ## check style and the rules of the architecture
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: $(STAMPS)/dev ## check the types
	@$(PY) -m mypy

format: $(STAMPS)/dev ## rewrite the sources to the project's style
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

docs: $(STAMPS)/docs ## build the site into build/site; whatever it warns of is an error
	@$(SITE) build
	@echo "the site is in build/site: open build/site/index.html"

docs-serve: $(STAMPS)/docs ## show the site at http://127.0.0.1:8000 while the pages are written
	@$(SITE) serve $(ARGS)

docs-test: $(STAMPS)/dev ## run the examples in the documents and check their links
	@$(PY) -m pytest tests/test_docs.py $(ARGS)

docs-operators: $(STAMPS)/dev ## write docs/operators.md anew: who runs and who differentiates each operator
	@$(PY) -m tests.cli.operator_table

bench: $(STAMPS)/dev ## time steps against eager, torch.compile and onnxruntime-training; write its figures into the pages
	@$(PY) -m benchmarks.peers || echo "the incumbent is left out"
	@$(PY) -m benchmarks.step $(ARGS)
	@$(PY) -m benchmarks.epoch
	@$(PY) -m benchmarks.contended
	@$(PY) -m benchmarks.threads
	@$(PY) -m benchmarks.latency
	@$(PY) -m benchmarks.ortmodule
	@$(PY) -m benchmarks.floor
	@$(PY) -m benchmarks.memory
	@$(PY) -m benchmarks.page

bench-gpu: $(STAMPS)/dev ## time steps on an NVIDIA GPU against eager and torch.compile; write docs/performance.md
	@$(PY) -m benchmarks.gpu $(ARGS)
	@$(PY) -m benchmarks.page

# The tiny run starts in an empty folder, so that only what the wheel declares and holds can be imported.
wheel-test: $(STAMPS)/dev ## build the wheel and train from it in a clean environment
	@rm -rf build dist
	@said=$$($(PY) -m build --wheel --no-isolation --outdir dist . 2>&1) || { echo "$$said" >&2; exit 1; }
	@clean=$$(mktemp -d) && trap 'rm -rf "$$clean"' EXIT \
	&& $(PY) -m venv "$$clean/venv" \
	&& "$$clean/venv/bin/python" -m pip install -qq $(or $(TORCH),-c constraints.txt $(PINNED_TORCH)) \
	&& "$$clean/venv/bin/python" -m pip install -qq -c $(if $(TORCH),$(PINS),constraints.txt) dist/*.whl \
	&& cp tests/test_tiny.py "$$clean" && cd "$$clean" && venv/bin/python test_tiny.py

clean: ## remove what was built; the environment stays
	@rm -rf build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find $(wildcard $(CHECKS)) -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment .venv, too
	@rm -rf .venv

# A stamp is touched by the last command of its recipe, so an interrupted installation is taken up again.

$(STAMPS)/venv:
	@if ! $(PY) -m pip --version >/dev/null 2>&1; then \
	  found=; \
	  for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	    if "$$python" -c '$(SUITABLE)' >/dev/null 2>&1; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "ontrain needs Python 3.11 or newer with the venv module, and none is among:" \
	      "$(or $(PYTHON),python3 python3.13 python3.12 python3.11)." >&2; \
	    echo "Install one (Debian, Ubuntu: apt install python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  echo "making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv $(VENV); \
	fi
	@mkdir -p $(STAMPS) && touch $@

# torch first and alone: any later requirement would be free to take the newest build of it.
$(PINS): constraints.txt $(STAMPS)/venv $(if $(TORCH),FORCE)
	@if [ -n '$(TORCH)' ]; then \
	  echo "installing $(TORCH)" && { $(PIP) install -qq $(TORCH) \
	    || { echo "pip does not find it as it is configured here: asking it without its files of configuration"; \
	      PIP_CONFIG_FILE=/dev/null $(PIP) install -qq $(TORCH); }; }; \
	elif [ '$(VENV)' = .venv ] || ! $(PY) -c 'import torch' 2>/dev/null; then \
	  echo "installing $(PINNED_TORCH) (a large download the first time)" && $(PIP) install -qq -c constraints.txt $(PINNED_TORCH); \
	fi
	@$(PIP) install -qq -c constraints.txt setuptools
	@{ $(PY) -c 'from importlib.metadata import version; print("torch==" + version("torch"))' \
	  && grep -v '^torch==' constraints.txt; } > $@.new && mv $@.new $@

$(STAMPS)/recipes: $(PINS) pyproject.toml
	@echo "installing ontrain and what the recipes need"
	@$(PIP) install -qq --no-build-isolation -c $(PINS) -e '.[recipes,hf]' && touch $@

# Sources are read from where they stand: an editable install would write beside them while another environment does.
# torch is there, and is not asked for again: pip's configuration may not know this one. LOWEST=1 takes the oldest
# version of everything that pyproject.toml admits.
$(STAMPS)/smoke: $(PINS) pyproject.toml
	@echo "installing what the smoke suite needs into $(VENV)"
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' | grep -v '^torch' $(if $(LOWEST),| sed 's/>=/==/') > $@.txt
	@grep -E '$(if $(LOWEST),^(torch|expecttest|hypothesis|pytest.*)==,.)' $(PINS) > $@.pins.txt
	@$(PIP) install -qq -c $@.pins.txt -r $@.txt $(SMOKE) && touch $@

# The site reads sources without importing them, so neither torch nor ontrain is installed for it.
$(STAMPS)/docs: $(STAMPS)/venv pyproject.toml constraints.txt
	@echo "installing what the site needs"
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > $@.txt
	@$(PIP) install -qq -c constraints.txt -r $@.txt && touch $@

$(STAMPS)/dev: $(STAMPS)/recipes
	@echo "installing what the tests need"
	@$(PIP) install -qq --no-build-isolation -c $(PINS) -e '.[recipes,azure,dev]' && touch $@
