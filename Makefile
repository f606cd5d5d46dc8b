# Every target installs what it needs into .venv; stamp files make later calls skip this step.
# Variables: PYTHON (interpreter for the virtual environment), WORKERS and ARGS (passed to pytest and the fuzzer).

PYTHON  ?= python3
WORKERS ?= 2
ARGS    ?=

VENV := .venv
BIN  := $(VENV)/bin
# -qq shows errors only.
PIP  := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# The OpenBLAS bundled with numpy and scipy has kernels for many processors, which round differently.
PROCESSORS := $(if $(filter x86_64,$(shell uname -m)),Haswell Sandybridge Prescott $(if $(shell grep -sm1 avx512f /proc/cpuinfo),SkylakeX))
NUMERICAL  := $(patsubst %,tests/aggregators/test_%.py,exactness properties equal_angle) tests/solvers \
              tests/test_fuzz.py tests/test_kernels.py

# Flower needs other versions of shared dependencies, so it gets a separate environment.
FLOWER_VENV := .venv-flower
FLOWER_PIP  := $(FLOWER_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-flower.txt

# Only the tests of real architectures and of trainers need their libraries, 1.2 GB without torch.
MODELS_VENV := .venv-models
MODELS_PIP  := $(MODELS_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# The wheel is installed beside torch alone.
WHEEL_VENV := .venv-wheel

# TorchJD's own tests, unpacked from its source distribution.
THEIR_TESTS := .torchjd-tests

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:   # two pips in one environment would race
.PHONY: help demo test test-processors test-kernels environments test-flower test-models test-torchjd test-wheel fuzz lint types imports docs bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-all  ## reproduce the paper's study on VLMOP2: table, figures and interactive report, in demo/vlmop2
	OMP_NUM_THREADS=1 $(BIN)/paretograd reproduce vlmop2 --out demo/vlmop2 --overwrite

test: $(VENV)/.stamp-test  ## run the tests, including the examples in README and docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-processors: $(PROCESSORS:%=test-on-%)  ## run the numerical tests with the OpenBLAS kernels of other processors
	@echo "The numerical tests passed with the kernels of: $(or $(PROCESSORS),this processor alone)"

# Prescott has no AVX, so torch must not use it either. `make test` takes this processor's own kernels.
test-on-Prescott: export ATEN_CPU_CAPABILITY := default
test-on-%: $(VENV)/.stamp-test
	if [ "$$($(BIN)/python .ci/own_kernels.py)" != $* ]; then \
	    OPENBLAS_CORETYPE=$* OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(NUMERICAL) $(ARGS); \
	fi

test-kernels: $(VENV)/.stamp-test-kernels  ## test the GPU kernels with Triton's interpreter
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) tests/test_kernels.py tests/device $(ARGS)

environments: $(patsubst %,$(VENV)/.stamp-%,test-torchjd test-wheel lint) $(THEIR_TESTS)/.stamp $(MODELS_VENV)/.stamp $(WHEEL_VENV)/.stamp

test-flower: $(FLOWER_VENV)/.stamp  ## test the Flower strategy: unit tests, and the example app simulated and deployed
	OMP_NUM_THREADS=1 $(FLOWER_VENV)/bin/python -m pytest -c tests_flower/pytest.ini tests_flower $(ARGS)

test-models: $(MODELS_VENV)/.stamp  ## test backward on real architectures, and the adapters for trainers
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(MODELS_VENV)/bin/python -m pytest -c tests_models/pytest.ini tests_models $(ARGS)

test-torchjd: $(VENV)/.stamp-test-torchjd $(THEIR_TESTS)/.stamp  ## test rules of both libraries in each other, with TorchJD's own properties
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -c tests_torchjd/pytest.ini tests_torchjd $(ARGS)

test-wheel: $(VENV)/.stamp-test-wheel $(WHEEL_VENV)/.stamp  ## build the wheel and use it alone, with each extra, and through mypy and pyright
	PYRIGHT_PYTHON_GLOBAL_NODE=1 $(BIN)/python tests_wheel/check.py $(WHEEL_VENV)

fuzz: $(VENV)/.stamp-test  ## check every rule on 200,000 hard Jacobians, about an hour; ARGS="--seconds 60" for less
	$(BIN)/python benchmarks/fuzz.py --workers $(WORKERS) $(ARGS)

lint: $(VENV)/.stamp-lint  ## run ruff, then types and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory types imports

types: $(VENV)/.stamp-lint  ## run strict mypy on the package
	$(BIN)/mypy

imports: $(VENV)/.stamp-lint  ## check the import layers with import-linter
	$(BIN)/lint-imports

docs: $(VENV)/.stamp-docs  ## build the documentation into site/; warnings are errors
	$(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "The documentation is in site/index.html"

bench: $(VENV)/.stamp-bench  ## compare the time and accuracy of the solvers with TorchJD
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/solvers.py

clean:  ## remove the virtual environments and all generated files
	rm -rf $(VENV) $(FLOWER_VENV) $(MODELS_VENV) $(WHEEL_VENV) $(THEIR_TESTS) site demo dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests tests_flower tests_models tests_torchjd tests_wheel examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Install torch first and alone, so that no dependent package can pick another build.
$(VENV)/.stamp-torch: constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "paretograd needs Python 3.11 or later, this is %d.%d: try make PYTHON=python3.12" % v[:2])'
	@echo "setting up $(VENV): torch"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch
	@touch $@

# One stamp per extra in pyproject.toml.
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

$(MODELS_VENV)/.stamp: constraints.txt pyproject.toml
	@echo "setting up $(MODELS_VENV): torch, paretograd[test-models]"
	@$(PYTHON) -m venv $(MODELS_VENV)
	@$(MODELS_PIP) torch
	@$(MODELS_PIP) -e '.[test-models]'
	@touch $@

$(WHEEL_VENV)/.stamp: constraints.txt
	@echo "setting up $(WHEEL_VENV): torch"
	@$(PYTHON) -m venv $(WHEEL_VENV)
	@$(WHEEL_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@touch $@

$(THEIR_TESTS)/.stamp: tests_torchjd/sdist.txt tests_torchjd/fetch.py | $(VENV)/.stamp-test-torchjd
	@$(BIN)/python tests_torchjd/fetch.py
	@touch $@
