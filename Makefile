# `make help` lists what there is. Everything lives in .venv; `make clean` removes it.

PYTHON ?= python3
# Where torch comes from, if not from the default index:
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Azurite, which the tests of Azure's store need, is npm's; without npm they are skipped.
NPM ?= $(shell command -v npm)

BIN := .venv/bin
READY := .venv/.ready

# What has a long form, for EVAC_NIGHTLY=1.
NIGHTLY := tests/agent/security/test_fuzz.py tests/handlers/rendezvous tests/deaths \
	tests/handlers/store/test_faults.py tests/handlers/torch/test_killed.py tests/container/test_image.py tests/container/test_memory.py

.DEFAULT_GOAL := help
.PHONY: setup system-packages demo demo-elastic test test-torch nightly lint bench manifest sample clean help

setup: $(READY)  ## make .venv with everything; again only when its inputs change

# The pip that comes with Python may be too old for --group, so it is brought up first.
$(READY): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "evac needs Python 3.11 or newer: make setup PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    --editable '.[agent,azure,gcs,s3,torch]' --group dev
	$(if $(NPM),$(NPM) install --silent --no-audit --no-fund --prefix .venv/node azurite@3.35.0 || \
	    echo "npm could not install azurite: the tests of Azure's store will be skipped" >&2)
	@touch $@

system-packages:  ## what some tests drive, from apt; nothing where it is there or apt is not
	tests/systemd/prepare
	tests/container/prepare

demo: $(READY)  ## the main job: a notice saves a real training run
	$(BIN)/python -m integration.demo

demo-elastic: $(READY)  ## three nodes become two and three again; stock torchrun's time beside ours
	$(BIN)/python -m integration.demo.elastic $(ARGS)

test: $(READY)  ## run every test; those of ARGS, where given
	$(BIN)/python $(if $(ARGS),-m pytest $(ARGS),tests/shards.py)

nightly: $(READY)  ## the long forms of tests: a million fuzzed packets, ten thousand killed daemons, ...
	EVAC_NIGHTLY=1 $(BIN)/python -m pytest $(or $(ARGS),$(NIGHTLY))

# The pins are those of the torch that constraints.txt names; another one brings its own.
test-torch: $(READY)  ## the tests that need torch, with another: make test-torch V=2.9
	$(PYTHON) -m venv .venv/torch-$(V)
	grep -v '^torch==' constraints.txt > .venv/torch-$(V)/constraints.txt
	.venv/torch-$(V)/bin/python -m pip install --quiet --upgrade pip
	.venv/torch-$(V)/bin/python -m pip install --quiet --constraint .venv/torch-$(V)/constraints.txt \
	    $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    --editable '.[agent,torch]' --group test 'torch==$(V).*'
	.venv/torch-$(V)/bin/python -m pytest $(or $(ARGS),tests/handlers/rendezvous tests/handlers/torch)

lint: $(READY)  ## style, types and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## run all benchmarks, print the table that README quotes
	$(BIN)/python integration/bench/run_all.py

manifest:  ## container/evac.yaml, off the chart
	container/manifest > container/evac.yaml.new && mv container/evac.yaml.new container/evac.yaml

sample: $(READY)  ## systemd/evac.toml, off the table of settings
	$(BIN)/python -c 'from evacd.install.sample import sample; print(sample(), end="")' > systemd/evac.toml

clean:  ## remove .venv and all that tools left behind
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' Makefile
