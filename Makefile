# Everything runs in .venv, which is made on first use and again only when the project's needs change.

PYTHON ?= python3
BIN := .venv/bin
# Without bytecode, each of the hundred processes that the tests start would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE
comma := ,
# TensorFlow brings the CUDA libraries only when it is asked to.
EXTRAS := all$(if $(shell command -v nvidia-smi),$(comma)tensorflow-gpu)

.PHONY: install demo test test-rest test-all test-gpu test-ray test-libraries test-lowest test-newest check docs bench mutate clean

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

# Each capability once. What else is run each day is test-rest. A property is tried with more examples by test-all.
test: install
	HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest $(TWO_AT_A_TIME) -m "not slow and not rest"

test-rest: install
	HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest $(TWO_AT_A_TIME) -m "not slow and rest"

test-all: install
	$(BIN)/python -m pytest $(TWO_AT_A_TIME)

test-gpu: install
	$(BIN)/python -m pytest -m gpu

# Other versions, each in an environment of its own, with PyTorch of the frameworks; WITH=search,bench,test leaves that out.
WITH := torch,search,bench,test
ON := $(notdir $(PYTHON))
BORDER = $$(grep --recursive --files-with-matches --include '*.py' 'mark.ray_border' tests)
MAIN_PATHS := tests/on_ray/test_run.py tests/on_ray/test_train_in_tune.py tests/on_ray/test_ways_in.py

# What is relied on of Ray beside its documented API, and the main paths, on another Ray or Python:
# make test-ray RAY=2.50.0 PYTHON=python3.12
test-ray: .venv-ray-$(RAY)-$(ON)/installed
	RAY_TRAIN_V2_ENABLED=1 .venv-ray-$(RAY)-$(ON)/bin/python -m pytest -m "ray_border and not slow" $(BORDER)
	RAY_TRAIN_V2_ENABLED=1 .venv-ray-$(RAY)-$(ON)/bin/python -m pytest -m "not slow" $(MAIN_PATHS)

.venv-ray-$(RAY)-$(ON)/installed: pyproject.toml constraints.txt
	test -n "$(RAY)" || { echo "say which Ray: make test-ray RAY=2.50.0"; exit 1; }
	test -x $(@D)/bin/pip || $(PYTHON) -m venv --clear $(@D)
	grep --invert-match '^ray==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt \
		--editable '.[$(WITH)]' 'ray[tune,train]==$(RAY)'
	touch $@

# The pure core and the main paths with the lowest versions that pyproject.toml allows, or with the newest that there
# are. PyTorch keeps its pin. Others' warnings about one another are no errors here.
test-lowest test-newest: test-%: .venv-%-$(ON)/installed
	RAY_TRAIN_V2_ENABLED=1 .venv-$*-$(ON)/bin/python -m pytest -W default -m "not slow" tests/unit $(MAIN_PATHS)

.venv-lowest-$(ON)/installed .venv-newest-$(ON)/installed: pyproject.toml constraints.txt
	test -x $(@D)/bin/pip || $(PYTHON) -m venv --clear $(@D)
	grep '^torch==' constraints.txt > $(@D)/constraints.txt
	$(if $(findstring lowest,$@),$(PYTHON) tests/lowest_versions.py $(subst $(comma), ,$(WITH)) >> $(@D)/constraints.txt)
	$(@D)/bin/python -m pip install --quiet --upgrade --constraint $(@D)/constraints.txt --editable '.[$(WITH)]'
	touch $@

# Libraries that call Tune, or run beside it, each with its versions and in an environment of its own: make test-libraries LIBRARY=flaml
LIBRARIES := huggingface flaml neuralforecast ultralytics autogluon ludwig beside_serve
LIBRARY := $(LIBRARIES)
NEEDS-huggingface := transformers==5.23.0 accelerate==1.15.0 torch==2.13.0
NEEDS-flaml := 'flaml[automl]==2.7.0'
NEEDS-neuralforecast := neuralforecast==3.3.0 torch==2.13.0
NEEDS-ultralytics := ultralytics==8.4.190
# AutoGluon accepts no Ray newer than 2.58.
NEEDS-autogluon := 'autogluon.core[raytune]==1.6.3' autogluon.tabular==1.6.3 torch==2.13.0
NEEDS-ludwig := ludwig==0.11.0 'dask[dataframe]' hyperopt
NEEDS-beside_serve := 'ray[serve]' torch==2.13.0
LIBRARY_ENVIRONMENTS := $(LIBRARIES:%=.venv-library-%/installed)

test-libraries: $(LIBRARY:%=test-library-%)

test-library-%: .venv-library-%/installed
	.venv-library-$*/bin/python -m pytest -W default -m slow -k $* tests/on_ray/test_libraries.py

$(LIBRARY_ENVIRONMENTS): .venv-library-%/installed: pyproject.toml
	test -x $(@D)/bin/pip || $(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install --quiet $(NEEDS-$*) hypothesis pytest pytest-timeout --editable '.[search]'
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

# Whether the unit tests see small mistakes in placement and policies.
mutate: install
	$(BIN)/python -m tests.evidence mutants

clean:
	rm -rf .venv .venv-ray-* .venv-library-* .venv-lowest-* .venv-newest-* build dist docs/reference/generated *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
