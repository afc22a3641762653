# `make demo` and `make test` are the two to know; each installs what it needs and says what it cannot.
UV_VERSION := 0.13.9
UV := $(or $(shell command -v uv),.tools/bin/uv)
PYTHON := .venv/bin/python
NATIVE := agent/native

.PHONY: help demo test lint unit crash bench soak cluster cluster-down crds images

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: .venv ## The main job, end to end, on a local cluster that it starts itself
	$(PYTHON) -m dev.demo

WORKERS := 2
test: lint ## Everything: lint, types, unit, crash (short), engine, control plane and cluster tests
	cd $(NATIVE) && cargo test --quiet --locked --no-default-features
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup tests/unit tests/chaos tests/engines tests/controlplane tests/cluster

lint: .venv ## Format, lint, types, layers, generated files
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	$(PYTHON) -m kvtier_crds.generate --check
	cd $(NATIVE) && cargo fmt --check
	cd $(NATIVE) && cargo clippy --quiet --locked --all-targets -- -D warnings

unit: .venv ## The tests that need neither a cluster nor a model
	cd $(NATIVE) && cargo test --quiet --locked --no-default-features
	$(PYTHON) -m pytest tests/unit tests/chaos

KILLS := 1000
CUTS := 500
FLIPS := 10000
crash: .venv ## kill -9, power cuts and bit flips (KILLS, CUTS, FLIPS of them); figures in .out/crash.json
	$(PYTHON) -m tests.chaos.crash --kills $(KILLS) --cuts $(CUTS) --flips $(FLIPS)

bench: .venv ## The store beside memcpy, the disk and other caches; figures in .out/bench.json
	.venv/bin/kvtier bench --scratch /var/tmp --soak-minutes 5 --json .out/bench.json

SOAK_MINUTES := 30
soak: .venv ## The bench's soak alone, SOAK_MINUTES long, into the same file
	.venv/bin/kvtier bench --scratch /var/tmp --only soak --soak-minutes $(SOAK_MINUTES) --json .out/bench.json

crds: .venv ## Write the CRDs, their chart's templates and docs/resources.md from the models
	$(PYTHON) -m kvtier_crds.generate

cluster: .venv ## Start the local cluster, for work on the project
	$(PYTHON) -m dev.cluster up

images: .venv ## Build the container images, without a registry
	$(PYTHON) -m dev.images

cluster-down: .venv ## Stop it and remove all that it left on the machine
	$(PYTHON) -m dev.cluster down

.venv: pyproject.toml uv.lock $(NATIVE)/Cargo.toml $(NATIVE)/Cargo.lock $(wildcard $(NATIVE)/src/*.rs) | $(UV)
	@dev/toolchain.sh
	@echo "installing the Python environment (torch included, under a minute; the native index is compiled)"
	$(UV) sync --all-extras --frozen --quiet
	@touch .venv

.tools/bin/uv:
	python3 -m venv .tools
	.tools/bin/pip install --quiet uv==$(UV_VERSION)
