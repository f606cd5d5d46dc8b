# Every target sets up what it needs in .venv; a second call finds the stamps and starts at once.
# Knobs: PYTHON (interpreter of the virtual environment), WORKERS and ARGS (for pytest and the fuzzer).

PYTHON  ?= python3
WORKERS ?= 2
ARGS    ?=

VENV := .venv
BIN  := $(VENV)/bin
# -qq leaves only the errors.
PIP  := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# numpy and scipy bring an OpenBLAS that has kernels for many processors, each with a rounding of its own.
PROCESSORS := $(if $(filter x86_64,$(shell uname -m)),Haswell Sandybridge Prescott $(if $(shell grep -sm1 avx512f /proc/cpuinfo),SkylakeX))
NUMERICAL  := $(wildcard $(patsubst %,tests/test_%.py,processors exactness properties references robust_solvers spectral_solver families equal_angle fuzz))

# Flower asks for other versions of what the rest uses, and gets an environment of its own.
FLOWER_VENV := .venv-flower
FLOWER_PIP  := $(FLOWER_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-flower.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:   # two pips in one environment would race
.PHONY: help demo test test-processors test-kernels test-flower fuzz lint types imports docs bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-all  ## the paper's study on VLMOP2: table, figures and an interactive report, in demo/vlmop2
	OMP_NUM_THREADS=1 $(BIN)/paretograd reproduce vlmop2 --out demo/vlmop2 --overwrite

test: $(VENV)/.stamp-test  ## run the tests, the examples in README and docs included
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-processors: $(PROCESSORS:%=test-on-%)  ## the numerical tests with the kernels of other processors, one after another
	@echo "The numerical tests passed with the kernels of: $(or $(PROCESSORS),this processor alone)"

# Prescott stands for a processor without AVX, for torch too.
test-on-Prescott: export ATEN_CPU_CAPABILITY := default
test-on-%: $(VENV)/.stamp-test
	OPENBLAS_CORETYPE=$* OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(NUMERICAL) $(ARGS)

test-kernels: $(VENV)/.stamp-test-kernels  ## the GPU's kernels, by Triton's interpreter
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_kernels_interpreted.py $(ARGS)

test-flower: $(FLOWER_VENV)/.stamp  ## the Flower strategy: unit tests, the example app simulated and deployed
	OMP_NUM_THREADS=1 $(FLOWER_VENV)/bin/python -m pytest -c tests_flower/pytest.ini tests_flower $(ARGS)

fuzz: $(VENV)/.stamp-test  ## try every rule on 200,000 hard Jacobians, for about an hour; ARGS="--seconds 60" for less
	$(BIN)/python benchmarks/fuzz.py --workers $(WORKERS) $(ARGS)

lint: $(VENV)/.stamp-lint  ## ruff, then types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory types imports

types: $(VENV)/.stamp-lint  ## mypy, strict, on the package
	$(BIN)/mypy

imports: $(VENV)/.stamp-lint  ## import-linter: which layer may import which
	$(BIN)/lint-imports

docs: $(VENV)/.stamp-docs  ## build the documentation into site/, warnings are errors
	$(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "The documentation is in site/index.html"

bench: $(VENV)/.stamp-bench  ## time and check the solvers against TorchJD
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/solvers.py

clean:  ## remove the virtual environment and everything that the other targets wrote
	rm -rf $(VENV) $(FLOWER_VENV) site demo dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tests_flower examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# torch first and alone, so that nothing which needs it can choose another build.
$(VENV)/.stamp-torch: constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "paretograd needs Python 3.11 or later, this is %d.%d: try make PYTHON=python3.12" % v[:2])'
	@echo "setting up $(VENV): torch"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@touch $@

# One stamp for each extra of pyproject.toml.
$(VENV)/.stamp-%: $(VENV)/.stamp-torch pyproject.toml
	@echo "setting up $(VENV): paretograd[$*]"
	@$(PIP) -e '.[$*]'
	@touch $@

$(FLOWER_VENV)/.stamp: constraints-flower.txt pyproject.toml
	@echo "setting up $(FLOWER_VENV): torch, paretograd[test-flower]"
	@$(PYTHON) -m venv $(FLOWER_VENV)
	@$(FLOWER_PIP) torch
	@$(FLOWER_PIP) -e '.[test-flower]'
	@touch $@
