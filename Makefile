# The one entry point. `make help` lists the targets.
SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
NOT_FAST := engine or staging or chart or cluster or gpu or offline_compile

.DEFAULT_GOAL := help
.PHONY: $(shell sed -nE 's/^([a-z][a-z0-9-]*):.*/\1/p' Makefile)

help: ## list the targets
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## /{printf "  %-16s %s\n", $$1, $$2}' Makefile

##@ Try it

setup: $(VENV)/.ready ## build the environment: CPU engine and what the tests need (4 minutes, once)

$(VENV)/.ready: requirements/cpu.txt requirements/cpu.lock requirements/test.lock backend_plugin/pyproject.toml service/pyproject.toml
	requirements/install $(VENV) test
	@touch $@

demo: setup ## serve the demo model on this CPU and ask it a question; KEEP=1 keeps serving
	$(BIN)/glm5 demo $(if $(KEEP),--keep)

##@ Before a commit

lint: setup ## check style and types: ruff, mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy backend_plugin/glm5_vllm service/glm5_service charts/dashboards charts/reference
	$(BIN)/python -m charts.reference --check

format: setup ## format the code
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

hooks: setup .venv-hooks/.ready ## install the checks of .pre-commit-config.yaml as git hooks
	.venv-hooks/bin/pre-commit install

##@ Test (docs/testing.md)

test: setup ## fast tier: unit, contract and kernel tests (3 minutes)
	OMP_NUM_THREADS=1 $(PYTEST) -m "not ($(NOT_FAST))" $(ARGS)

test-engine: setup ## start the real vLLM engine on the CPU
	$(PYTEST) -m engine $(ARGS)

test-staging: setup ## stage from real servers, with kills and faults
	$(PYTEST) -m staging $(ARGS)

test-offline: setup .venv-triton/.ready ## compile every kernel configuration for SM80, SM89, SM100 and SM120, without a card
	$(PYTEST) -m offline_compile $(ARGS)

test-gpu: ## run the kernels on this machine's CUDA card; needs vLLM in the python of PATH
	python -m pytest -m gpu tests/gpu $(ARGS)

chart: setup .cache/tools/kubectl .venv-checkov/.ready ## check the chart: lint, renders, schemas, refusals, policy
	$(PYTEST) -m chart $(ARGS)

e2e: setup .cache/tools/kubectl ## install, break and heal the chart on the cluster of KUBECONFIG; HELM=helm3, KEEP=1
	$(if $(HELM),GLM5_E2E_HELM=$(HELM)) $(if $(KEEP),GLM5_E2E_KEEP=1) $(PYTEST) -m cluster -s tests/e2e $(ARGS)

e2e-lab: setup ## make a cluster on this Debian 12, run e2e on it, remove it; needs root
	tests/e2e/lab/run

##@ Measure (writes tests/results/)

record: setup ## run the engine tests and keep their figures
	RECORD_RESULTS=1 $(PYTEST) -m engine $(ARGS)

soak: setup ## keep the engine busy for half an hour and record what the probes said
	RECORD_RESULTS=1 SOAK_SECONDS=1800 $(PYTEST) tests/engine/test_serve.py -k full_load $(ARGS)

bench-staging: setup ## stage at full size: sources, kills, a sparse 402 GB set, speed against curl (20 minutes)
	$(BIN)/python -m tests.bench.staging_full sources tests/results/staging-sources.json
	$(BIN)/python -m tests.bench.staging_full kills tests/results/staging-kills.json
	$(BIN)/python -m tests.bench.staging_full sparse tests/results/staging-full-size.json
	$(BIN)/python -m tests.bench.staging_speed tests/results/staging-speed.json

##@ Generate (commit what changes)

contracts: setup ## JSON Schemas of what passes between the parts, after a change of a model or a setting
	$(BIN)/python -m glm5_service.contracts.generate

metrics-docs: setup ## the reference of the sidecar's metrics, after a change of the catalogue
	$(BIN)/glm5 sidecar --reference > service/docs/metrics.md

staging-docs: setup ## the table of staging faults, after a change of the fault tests or the reasons
	$(BIN)/python -m tests.support.staging.faults_table

chart-docs: setup ## the chart's schema, value tables and goldens, after a change of values or templates
	$(BIN)/python -m charts.reference
	GLM5_RECORD=1 $(PYTEST) -q tests/chart -k golden

dashboards: setup ## the Grafana boards, after a change of charts/dashboards
	$(BIN)/python -m charts.dashboards

lock: setup ## requirements/*.lock, from the environment as it is
	$(BIN)/python requirements/lock.py

##@ Release

images: ## build every image that this machine can, with docker or buildah
	docker/build

version: ## set the version of wheels, images and chart: make version TO=0.2.0
	release/version $(TO)

package: .venv-release/.ready .cache/tools/kubectl ## wheels, chart, SBOMs and checksums of the last commit, into dist/
	release/package

release: .venv-release/.ready .cache/tools/kubectl ## package, refuse what is not ready, and tag the commit
	release/package --tag

##@ Clean up

clean: ## remove the environments and every cache
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache build dist

.venv-%/.ready: requirements/%.txt
	python3.11 -m venv .venv-$*
	.venv-$*/bin/pip install -q --disable-pip-version-check --no-deps -r $< 2> >(grep -v '^WARNING' >&2)
	@touch $@

.cache/tools/kubectl: charts/fetch-tools
	python3.11 charts/fetch-tools .cache/tools
