# Each target makes its own virtual environment and installs what it needs; nothing else has to be done first.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Where to find PyTorch, if not where pip looks anyway. On Linux, pip's default build is for CUDA and several GB large;
# `make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu` takes the CPU build.
TORCH_INDEX ?=
# One thread per process: two that fight over the cores are slower than one.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1

.PHONY: demo test faults lint format bench clean
.DEFAULT_GOAL := demo

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Triptych needs Python 3.11 or newer"'
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/python -m pip install --quiet -c constraints.txt torch --index-url $(TORCH_INDEX))

# A stamp per set of extras, renewed when the dependencies change.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing Triptych and what it needs into $(VENV): one to two GB, some minutes ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

demo: $(VENV)/.installed-data
	$(BIN)/triptych demo

test: $(VENV)/.installed-all lint
	$(BIN)/python -m pytest -n 2

# Fifty kills of one run, at random; some minutes.
faults: $(VENV)/.installed-all
	$(BIN)/python tests/train/faults.py --kills 50

lint: $(VENV)/.installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-all
	$(BIN)/python bench/loader.py
	$(BIN)/python bench/loader.py --rows
	$(BIN)/python bench/movq.py
	$(BIN)/python bench/head.py
	$(BIN)/python bench/checkpoints.py
	$(BIN)/python bench/memory.py

clean:
	rm -rf $(VENV) out runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
