# make demo | test | test-slow | fuzz [SECONDS=600] | bench [ONLY=prefix] | convergence
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-slow fuzz bench convergence lint types kernels format clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/xtune demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=. $(BIN)/lint-imports --no-cache

types: $(STAMP)
	$(BIN)/mypy

kernels: $(STAMP)
	$(BIN)/python -m tests.kernels

test: $(STAMP)
	$(MAKE) --jobs 2 lint types kernels
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadgroup

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m "slow and not alone" -n 2 --dist loadgroup
	$(BIN)/python -m pytest -m "slow and alone"

fuzz: $(STAMP)
	$(BIN)/python -m tests.hostile.fuzz --seconds $(or $(SECONDS),600)

bench: $(STAMP)
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

convergence: $(STAMP)
	$(BIN)/python -m xtune.proofs.convergence --out convergence \
		--response xtune/sim/measured_response.json

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist demo *.egg-info
