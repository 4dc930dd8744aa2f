# Everything runs in .venv, which is made on first use and again only when the project's needs change.

PYTHON ?= python3
BIN := .venv/bin
comma := ,
# TensorFlow brings the CUDA libraries only when it is asked to.
EXTRAS := all$(if $(shell command -v nvidia-smi),$(comma)tensorflow-gpu)

.PHONY: install demo test test-rest test-all test-gpu test-ray check docs bench clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tune-policies needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: install
	$(BIN)/python examples/demo.py

# Most tests wait for a Ray: two at a time use a machine of two cores better than one.
TWO_AT_A_TIME := --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Each capability once. What else is run each day is test-rest; a property is tried there with more examples.
test: install
	HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest $(TWO_AT_A_TIME) -m "not slow and not rest"

test-rest: install
	$(BIN)/python -m pytest $(TWO_AT_A_TIME) -m "not slow and (rest or hypothesis)"

test-all: install
	$(BIN)/python -m pytest $(TWO_AT_A_TIME)

test-gpu: install
	$(BIN)/python -m pytest -m gpu

# What is relied on of Ray beside its documented API, on another version of it: make test-ray RAY=2.50.0
# It has an environment of its own: the pinned versions of all but Ray, and of the frameworks PyTorch alone.
test-ray: .venv-ray-$(RAY)/installed
	RAY_TRAIN_V2_ENABLED=1 .venv-ray-$(RAY)/bin/python -m pytest -m "ray_border and not slow" \
		$$(grep --recursive --files-with-matches --include '*.py' 'mark.ray_border' tests)

.venv-ray-$(RAY)/installed: pyproject.toml constraints.txt
	test -n "$(RAY)" || { echo "say which Ray: make test-ray RAY=2.50.0"; exit 1; }
	test -x .venv-ray-$(RAY)/bin/pip || $(PYTHON) -m venv --clear .venv-ray-$(RAY)
	grep --invert-match '^ray==' constraints.txt > .venv-ray-$(RAY)/constraints.txt
	.venv-ray-$(RAY)/bin/python -m pip install --quiet --constraint .venv-ray-$(RAY)/constraints.txt \
		--editable '.[torch,search,test]' 'ray[tune,train]==$(RAY)'
	touch $@

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The site, in build/site. A link that leads nowhere, or a name that is not there, is an error.
docs: install
	rm -rf docs/reference/generated
	$(BIN)/python -m sphinx --builder html --nitpicky --fail-on-warning --keep-going --quiet --jobs auto docs build/site

bench: install
	$(BIN)/python -m tests.evidence planning

clean:
	rm -rf .venv .venv-ray-* build dist docs/reference/generated *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
