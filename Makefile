# Everything that a fresh machine with Python >= 3.11 needs: `make demo` and `make test` set up .venv by themselves.
SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
PINS := requirements/constraints.txt
STAMP := $(VENV)/.installed
UV := $(shell command -v uv 2>/dev/null)
OUT ?= out/demo
PYTEST_ARGS ?=
# What bench/decode.py reads, and with which head: PROMPTS.jsonl --column … --mtp HEAD --categories
BENCH_PROMPTS ?= examples/prompts.jsonl --column prompt

.PHONY: help setup demo test lint format types tests bench bench-full benchmarks-page pins docs pictures clean

help:
	@echo "make demo    examples/prompts.jsonl -> a Parquet dataset in $(OUT)"
	@echo "make test    ruff, mypy and pytest; the one command before a commit"
	@echo "make setup   .venv with everything, and nothing else"
	@echo "make lint    ruff check and ruff format --check      make format   rewrite"
	@echo "make types   mypy --strict                           make tests    pytest alone"
	@echo "make bench   the measurements under bench/, short    make pins     pin the dependencies anew (needs uv)"
	@echo "make bench-full  all of them (an hour), into bench/results and docs/benchmarks.md"
	@echo "make docs    the documentation's site, in site/        make pictures DATASET=…  its pictures (needs chromium)"
	@echo "make clean   remove .venv and tool caches"

setup: $(STAMP)

# The stamp is written last: an interrupted set-up starts over, a finished one is never repeated.
$(STAMP): $(PINS) pyproject.toml
	@set -euo pipefail; \
	found=""; \
	for name in python3.13 python3.12 python3.11 python3.14 python3 python; do \
	  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$(command -v "$$name")"; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "specmill needs Python >= 3.11; none of python3.11 to python3.14, python3 and python is one" >&2; exit 1; fi; \
	echo "setting up $(VENV) with $$found (a minute or two)"; \
	if [ -n "$(UV)" ]; then \
	  uv venv --quiet --clear --python "$$found" $(VENV); \
	  uv pip install --quiet --python $(PYTHON) --require-hashes -r $(PINS); \
	  uv pip install --quiet --python $(PYTHON) --no-deps --no-build-isolation --editable .; \
	else \
	  "$$found" -m venv --clear $(VENV); \
	  $(PYTHON) -m pip install -qq --disable-pip-version-check --require-hashes -r $(PINS); \
	  $(PYTHON) -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	fi; \
	touch $@

demo: $(STAMP)
	$(VENV)/bin/specmill demo --out $(OUT)

test: lint types tests

lint: $(STAMP)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

format: $(STAMP)
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

types: $(STAMP)
	$(PYTHON) -m mypy

tests: $(STAMP)
	$(PYTHON) -m pytest --numprocesses 2 --dist worksteal --cov --cov-report=term:skip-covered $(PYTEST_ARGS)

bench: $(STAMP)
	$(call measure,--short --results out/bench)
	$(PYTHON) bench/table.py out/bench

bench-full: $(STAMP)
	$(call measure,--results bench/results)
	$(MAKE) benchmarks-page

benchmarks-page: $(STAMP)
	$(PYTHON) bench/table.py bench/results > docs/benchmarks.md

define measure
	$(PYTHON) bench/start_up.py $(1)
	$(PYTHON) bench/queue_overhead.py $(1)
	$(PYTHON) bench/million_rows.py $(1)
	$(PYTHON) bench/scaling.py $(1)
	$(PYTHON) bench/fleet_simulation.py
	$(PYTHON) bench/verify_step.py $(1)
	$(PYTHON) bench/landing.py $(1)
	$(PYTHON) bench/decode.py $(BENCH_PROMPTS) $(1)
endef

pins:
	uv pip compile --quiet --universal --upgrade --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header \
	  --python-version 3.11 --extra dev --extra docs --extra monitor --extra s3 pyproject.toml --output-file $(PINS)

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

pictures: $(STAMP)
	$(PYTHON) tests/support/pictures.py $(DATASET)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage dist
