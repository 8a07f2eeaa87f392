# Everything that people and CI run here. `make` lists it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
DEMO_DIR ?= runs/demo
BENCH := runs/bench-gpu
# A worker waits for its children as much as it computes: three keep two cores busy.
WORKERS ?= 3
BRIEFLY := trainer.max_steps=40 trainer.save_steps=20 trainer.output_dir=run scheduler.warmup_steps=2
LIGHT_COMMANDS := 'init --text help.txt --size tiny --device cpu' 'lint run.yaml' 'plan run.yaml' 'profiles list' \
  'explain trainer.save_steps --profile cpu-demo' 'rule --all' schema 'runs .' 'status run' 'watch run' 'runs compare run run'
# Tests start hundreds of interpreters: each source is compiled once for all of them.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := neobert neobert_launch launcher profiles validators tests benchmarks docs/conf.py docs/reference_pages.py hatch_build.py

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo unit test test-thorough test-faults test-wheel test-torchao slurm-test mutation test-gpu lint format docs site bench bench-gpu clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "Python 3.11 to 3.13 is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "no venv module: apt install python3-venv"; exit 1; }
	$(PIP) install --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --group dev
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --group docs
	touch $@

setup: $(VENV)/.installed ## Create .venv and install the project
setup-dev: $(VENV)/.installed-dev ## The same with what tests and linters need

demo: setup ## Train a small encoder on the Python documentation, guarded, on any machine
	$(BIN)/neobert-launch train --profile cpu-demo --resume auto --set trainer.output_dir=$(DEMO_DIR)

unit: WORKERS = 2
unit: setup-dev ## The tests without child processes, network or torch, with few examples of each property (under a minute)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q --unit --hypothesis-profile=brief -p no:logging

test: setup-dev ## All tests that need no GPU
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q

test-thorough: setup-dev ## The same with ten times as many examples of each property
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q --hypothesis-profile=thorough

test-faults: setup-dev ## All fault tests, every family and task sharded, and 220 kills at random times
	$(BIN)/python -m pytest -q tests/faults
	$(BIN)/python -m tests.faults.random_kills --kills 200
	$(BIN)/python -m tests.faults.sharded_kills --kills 20
	$(BIN)/python -m tests.faults.sharded_tasks

test-wheel: ## Build the wheel, install it into a clean environment, train a little outside the checkout
	rm -rf dist build/wheel
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	build/wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	mkdir build/wheel/empty && cd build/wheel/empty && ../bin/neobert-launch --help > help.txt \
	  && ../bin/neobert-launch plan --profile h200-prod && ../bin/neobert-launch lint $(CURDIR)/examples/real-text.yaml \
	  && ../bin/neobert-launch train --profile cpu-demo $(BRIEFLY) && ../bin/neobert-launch report run
	cd build/wheel/empty && for each in $(LIGHT_COMMANDS); do ../bin/neobert-launch $$each > out.txt || exit 1; done

test-torchao: setup-dev ## Test fp8, with the extra torchao, which transformers then imports in every process
	$(PIP) install --constraint constraints.txt --editable '.[torchao]'
	$(BIN)/python -m pytest tests/precision

slurm-test: setup-dev ## The tests of a real Slurm on this machine (apt-get install slurmctld slurmd slurm-client munge)
	$(BIN)/python -m pytest -q -m slurm tests/slurm

mutation: setup-dev ## Edit rules and probes: the share of 200 edits that a test notices
	$(BIN)/python -m tests.mutation

test-gpu: setup-dev ## The tests of a CUDA device
	$(BIN)/python -m pytest -q tests/gpu

lint: setup-dev ## Style, spelling, types, import contracts, shipped configs
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/codespell $(SOURCES) .github docs examples *.md Makefile pyproject.toml
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m profiles.lock --check
	$(BIN)/neobert-launch lint profiles examples/real-text.yaml

format: setup-dev ## Rewrite the sources in the project's style
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: setup-dev ## Regenerate the generated pages and the JSON Schema
	$(BIN)/python -m validators.pages > docs/rules.md
	$(BIN)/neobert-launch schema > docs/neobert.schema.json

site: $(VENV)/.installed-docs ## Build the documentation into build/site, to be opened from the disk
	$(BIN)/sphinx-build --quiet --fail-on-warning --fresh-env docs build/site

bench: setup-dev ## Start-up time
	$(BIN)/python benchmarks/startup.py

bench-gpu: setup-dev ## Speed of two kernels and of ModernBERT on this GPU, into runs/bench-gpu (half an hour)
	mkdir -p $(BENCH)
	-$(BIN)/neobert-launch bench --profile h100-prod --b-set model.kernel_backend=torch --output $(BENCH)/kernels.json
	-$(BIN)/python benchmarks/against_modernbert.py $(BENCH)/work --output $(BENCH)

clean: ## Remove the environment, caches and the demo's run
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist $(DEMO_DIR)
