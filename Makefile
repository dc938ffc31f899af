# Everything runs in .venv, installed at the versions of constraints.txt. `make` lists the targets.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev quick table test torture cluster lint type format paper paper-quick bench lock floors clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: .venv/ready ## make .venv with what training needs
setup-dev: .venv/ready-dev ## and what tests and lint need

# Modules are compiled when they are first imported: most of them never are.
# Where that is switched off, every start of Python would compile them again.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable

.venv/ready: pyproject.toml constraints.txt
	@echo "installing into .venv, 1.5 GB or more: minutes without a word"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) .
	@touch $@

.venv/ready-dev: pyproject.toml constraints.txt
	@echo "installing into .venv, 1.5 GB or more: minutes without a word"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) '.[dev]'
	@touch $@ .venv/ready

# A run on each core: small runs together end earlier than one after the other on all cores.
EACH_CORE = launch.num_threads=1

quick: setup ## train NoPE and QK-RoPE for 100 steps; a table and their curves in results/quick/
	$(BIN)/python train.py -m pe=nope,qk_rope train.num_steps=100 train.eval_every=10 $(EACH_CORE) run.group=quick
	$(BIN)/python scripts/report.py --group quick
	@echo "Open results/quick/report.html: the table and its figures on one page."

table: setup ## train the nine on the stdlib corpus; table and figures in results/table/
	$(BIN)/python train.py +experiment=nine $(EACH_CORE) run.group=table
	$(BIN)/python scripts/report.py --group table
	@echo "Open results/table/report.html: the table and its figures on one page."

paper: setup-dev ## the paper's tables again, from its records, and the tests of paper/
	$(BIN)/python paper/tables.py
	git diff --exit-code --stat -- paper/results
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal paper/tests

paper-quick: setup-dev ## the tests of paper/ that make no table again: hashes, pins, digests, prose
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal paper/tests \
		--ignore paper/tests/test_tables.py

test: setup-dev ## every test of the harness but the long ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

torture: setup-dev ## the long tests of both, among them KILLS=6 random kill -9 of each kind of run
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m torture tests paper/tests

cluster: setup-dev ## SLURM, two hosts and power cuts on this machine: needs root (tests/cluster/README.md)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -v -m cluster tests/cluster

lint: setup-dev type ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: setup-dev
	$(BIN)/mypy

format: setup-dev ## rewrite the source in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup-dev ## time a training step beside that of transformers' Trainer
	GOMP_SPINCOUNT=50000 $(BIN)/python scripts/bench.py $(BENCH)

lock: setup-dev ## write constraints.txt from what .venv holds
	(head -1 constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu//') > constraints.new
	mv constraints.new constraints.txt

floors: setup ## resolve the oldest versions that pyproject.toml allows, all together
	sed -n '/^dependencies/,/^]/s/^ *"\([a-z-]*\)>=\([0-9.]*\).*/\1==\2/p' pyproject.toml > .venv/floors.txt
	$(BIN)/pip install --quiet --dry-run --ignore-installed --requirement .venv/floors.txt

clean: ## remove .venv and caches; results/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
