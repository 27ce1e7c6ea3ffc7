PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow lint reference docs clean

# The stamp makes a second set-up instant; it is redone when the dependencies change.
.venv/.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

setup: .venv/.stamp

demo: setup
	$(BIN)/fedspecial compare digits-shift --methods special,fedavg --seeds 25 --matrices

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n 2

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: setup
	$(BIN)/pytest -n 2 --dist worksteal -m slow --timeout 1200

# Rewrites the pages that are derived from code and records: settings, command line, results of the studies.
reference: setup
	$(BIN)/python tools/docs/reference.py
	$(BIN)/python tools/docs/results.py

# Strict: a missing page, a broken link or image, or a formula that cannot be converted fails the build.
docs: setup
	PYTHONPATH=tools/docs $(BIN)/zensical build --clean --strict
	$(BIN)/python tools/docs/check_site.py

clean:
	rm -rf .venv site .cache .pytest_cache .mypy_cache .ruff_cache
