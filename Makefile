# The one entry point. `make help` lists the targets.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
NOT_FAST := engine or staging or chart or cluster or gpu or offline_compile

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-engine test-staging test-offline bench-staging staging-docs contracts chart chart-docs dashboards images e2e lint format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## build the environment of the CPU profile, with what the tests need (4 minutes once)

$(VENV)/.ready: requirements/cpu.txt requirements/cpu.lock requirements/test.lock backend_plugin/pyproject.toml service/pyproject.toml
	requirements/install $(VENV) test
	@touch $@

demo: setup ## serve the demo model on this machine's CPU and ask it a question; KEEP=1 keeps it running
	$(BIN)/glm5 demo $(if $(KEEP),--keep)

test: setup ## the fast tier: every unit, contract and kernel test (3 minutes)
	OMP_NUM_THREADS=1 $(PYTEST) -m "not ($(NOT_FAST))"

test-engine: setup ## tests that start the real vLLM engine on CPU
	$(PYTEST) -m engine $(ARGS)

test-staging: setup ## staging against real servers, with kills and faults
	$(PYTEST) -m staging

test-offline: setup .venv-triton/.ready ## compile every kernel configuration for SM80, SM89, SM100 and SM120, without a card
	$(PYTEST) -m offline_compile

.venv-%/.ready: requirements/%.txt
	python3.11 -m venv .venv-$*
	.venv-$*/bin/pip install -q --disable-pip-version-check --no-deps -r $< 2> >(grep -v '^WARNING' >&2)
	@touch $@

bench-staging: setup ## staging at full size: sources, kills, a sparse 402 GB set, speed against curl (20 minutes)
	$(BIN)/python -m tests.bench.staging_full sources tests/results/staging-sources.json
	$(BIN)/python -m tests.bench.staging_full kills tests/results/staging-kills.json
	$(BIN)/python -m tests.bench.staging_full sparse tests/results/staging-full-size.json
	$(BIN)/python -m tests.bench.staging_speed tests/results/staging-speed.json

contracts: setup ## write the JSON Schemas of what passes between the parts, after a change of a model or a setting
	$(BIN)/python -m glm5_service.contracts.generate

staging-docs: setup ## write the table of faults after a change of the fault tests or the reasons
	$(BIN)/python -m tests.support.staging.faults_table

chart: setup .cache/tools/kubectl .venv-checkov/.ready ## the chart: lint, renders, schemas of three Kubernetes versions, refusals, policy
	$(PYTEST) -m chart

chart-docs: setup ## write the chart's schema, README table and goldens after a change of values or templates
	$(BIN)/python charts/generate
	GLM5_RECORD=1 $(PYTEST) -q tests/chart -k golden

dashboards: setup ## write the Grafana boards from charts/dashboards
	$(BIN)/python -m charts.dashboards

.cache/tools/kubectl: charts/fetch-tools
	$(BIN)/python charts/fetch-tools .cache/tools

images: ## build every image that this machine can, with docker or buildah
	docker/build

e2e: setup .cache/tools/kubectl ## install, break and heal the chart on the cluster of KUBECONFIG
	$(PYTEST) -m cluster -s tests/e2e

lint: setup ## ruff and mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy backend_plugin/glm5_vllm service/glm5_service charts/dashboards demo_model

format: setup ## format the code
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

lock: setup ## write requirements/*.lock from the environment as it is
	$(BIN)/python requirements/lock.py

clean: ## remove the environments and every cache
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache build dist
