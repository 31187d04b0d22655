# Every target sets up what it needs and does nothing twice.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-slow test-gpu check bench format clean

demo: .venv/base
	$(BIN)/calispan demo

test: .venv/dev
	$(BIN)/python -m pytest

test-slow: .venv/dev
	$(BIN)/python -m pytest -m slow

test-gpu: .venv/dev
	$(BIN)/python -m pytest -m gpu

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/docs

bench: .venv/dev
	$(BIN)/python benchmarks/run_all.py

format: .venv/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/base: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --constraint constraints.txt --editable .
	touch $@

.venv/dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	touch .venv/base $@

clean:
	rm -rf .venv build dist runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
