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

.PHONY: demo report test docs faults lint format bench clean
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

# The page of the built-in model: the toy dataset with its exact judge, and FID, speech and likelihood on the same data
# as on anyone's. Stopped, it resumes; REPORT_IMAGES and REPORT_SPEECH change its size.
REPORT_IMAGES ?= 300
REPORT_SPEECH ?= 100
REPORT_DATA := out/report/data
report: $(VENV)/.installed-data,eval
	$(BIN)/triptych eval scenes --images $(REPORT_IMAGES) --speech $(REPORT_SPEECH) --quiet
	$(BIN)/triptych scenes write $(REPORT_DATA) --split test --num-samples $(REPORT_SPEECH) --quiet
	$(BIN)/triptych eval image scenes --data $(REPORT_DATA)/test/image-text --geneval none --quiet
	$(BIN)/triptych eval audio scenes --data $(REPORT_DATA)/test/audio-text --quiet
	$(BIN)/triptych scenes make $(REPORT_DATA)/tokens --text 1 --images 1 --speech 1 --validation $(REPORT_SPEECH) --quiet
	$(BIN)/triptych eval elbo scenes --data $(REPORT_DATA)/tokens/validation --sequences $(REPORT_SPEECH) --quiet
	$(BIN)/triptych eval report scenes --html out/report/scenes.html

test: $(VENV)/.installed-all lint
	$(BIN)/python -m pytest -n 2

# The documentation site, in site/; fails on a link, an anchor or a name that leads nowhere.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict --quiet
	@echo "wrote site/index.html; $(BIN)/mkdocs serve shows it in a browser, with search"

# Fifty kills of one run, at random, and damaged files for every reader; some twenty minutes.
FUZZ_MINUTES ?= 10
faults: $(VENV)/.installed-all
	$(BIN)/python tests/training/faults.py --kills 50
	$(BIN)/python tests/hostile/fuzz.py --minutes $(FUZZ_MINUTES)

lint: $(VENV)/.installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-all
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A short form of every benchmark, about ten minutes; each alone, with --help, says what it measures.
bench: export OMP_NUM_THREADS =
bench: $(VENV)/.installed-all
	$(BIN)/python bench/limit.py --short
	$(BIN)/python bench/train.py --short
	$(BIN)/python bench/sample.py --short
	$(BIN)/python bench/padding.py --short
	$(BIN)/python bench/precision.py --short
	$(BIN)/python bench/growth.py --short
	$(BIN)/python bench/startup.py --short
	$(BIN)/python bench/laws.py --short
	$(BIN)/python bench/fewer_steps.py --only answer --images 24 --speech 8 --records out/fewer_steps.jsonl --figure out/fewer-steps.png
	$(BIN)/python bench/loader.py --seconds 1
	$(BIN)/python bench/movq.py
	$(BIN)/python bench/checkpoints.py --steps 41 --repeats 1
	$(BIN)/python bench/memory.py --only small

clean:
	rm -rf $(VENV) out runs build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
