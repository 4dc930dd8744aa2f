# Everything runs in .venv. It is created on first use and updated when pyproject.toml or constraints.txt changes.

PYTHON ?= python3
BIN := .venv/bin
# Without bytecode files, each process that the tests start would compile the packages again.
unexport PYTHONDONTWRITEBYTECODE
comma := ,
# TensorFlow installs the CUDA libraries only with its extra.
EXTRAS := all$(if $(shell command -v nvidia-smi),$(comma)tensorflow-gpu)

.PHONY: install demo test test-rest test-all test-gpu test-ray test-libraries test-lowest test-newest test-wheel sbom check docs bench mutate clean pod-template-schema

# uv needs a fifth of pip's time: make install INSTALL="uv pip install --python .venv/bin/python"
INSTALL := $(BIN)/python -m pip install

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tune-policies needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	$(INSTALL) --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

demo: install
	$(BIN)/python examples/demo.py

# Many tests wait for Ray, so three processes use two cores better than two.
THREE_AT_A_TIME := --numprocesses 3 --dist loadfile --no-loadscope-reorder

# The five parts of the project: planner, runner, profiling, benchmarks and kuberay. make test PART=kuberay runs the
# tests of one part.
PART :=
TESTS := tests
ifdef PART
TESTS := $(wildcard tests/*/$(PART))
$(if $(TESTS),,$(error PART is $(PART). The parts are planner, runner, profiling, benchmarks and kuberay))
endif

# test runs one test of each main capability, test-rest the other capabilities and forms. test-all also runs the slow
# tests, and more examples of each property. make test MARKS="not slow" runs test and test-rest together, so that each
# module starts Ray only once.
MARKS := not slow and not rest and not ci
test: install
	HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest $(THREE_AT_A_TIME) -m "$(MARKS)" $(TESTS)

test-rest: install
	HYPOTHESIS_PROFILE=few $(BIN)/python -m pytest $(THREE_AT_A_TIME) -m "not slow and (rest or ci)" $(TESTS)

test-all: install
	$(BIN)/python -m pytest $(THREE_AT_A_TIME) --record-as "all tests"

# AT_ONCE=8 runs eight tests at once, except those that need the whole GPU.
AT_ONCE := 0
test-gpu: install
	XLA_PYTHON_CLIENT_PREALLOCATE=false $(BIN)/python -m pytest -m "gpu and not whole_gpu" \
		--numprocesses $(AT_ONCE) --dist worksteal
	$(BIN)/python -m pytest -m "gpu and whole_gpu"

# Other versions, each in its own environment. PyTorch is the only framework; WITH=search,bench,test omits it.
WITH := torch,search,bench,test
ON := $(notdir $(PYTHON))
BORDER = $$(grep --recursive --files-with-matches --include '*.py' 'mark.ray_border' tests)
MAIN_PATHS := tests/on_ray/runner/test_run.py tests/on_ray/runner/test_train_in_tune.py tests/on_ray/runner/test_ways_in.py

# If no test fails, --record-as enters the versions and the date into docs/evidence/versions.json.
# The tests of Ray internals and of the main paths, with another version of Ray or Python:
# make test-ray RAY=2.50.0 PYTHON=python3.12
test-ray: .venv-ray-$(RAY)-$(ON)/installed
	RAY_TRAIN_V2_ENABLED=1 .venv-ray-$(RAY)-$(ON)/bin/python -m pytest -m "ray_border and not slow" --record-as "Ray internals" $(BORDER)
	RAY_TRAIN_V2_ENABLED=1 .venv-ray-$(RAY)-$(ON)/bin/python -m pytest -m "not slow" --record-as "main paths" $(MAIN_PATHS)

.venv-ray-$(RAY)-$(ON)/installed: pyproject.toml constraints.txt
	test -n "$(RAY)" || { echo "RAY is not set: make test-ray RAY=2.50.0"; exit 1; }
	test -x $(@D)/bin/pip || $(PYTHON) -m venv --clear $(@D)
	grep --invert-match '^ray==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --constraint $(@D)/constraints.txt \
		--editable '.[$(WITH)]' 'ray[tune,train]==$(RAY)'
	touch $@

# The unit tests and the main paths with the lowest versions that pyproject.toml allows, or with the newest versions.
# PyTorch stays pinned. Warnings are not errors here, because other packages warn about each other's versions.
test-lowest test-newest: test-%: .venv-%-$(ON)/installed
	RAY_TRAIN_V2_ENABLED=1 .venv-$*-$(ON)/bin/python -m pytest -W default -m "not slow" --record-as "unit tests" tests/unit
	RAY_TRAIN_V2_ENABLED=1 .venv-$*-$(ON)/bin/python -m pytest -W default -m "not slow" --record-as "main paths" \
		$(MAIN_PATHS)

.venv-lowest-$(ON)/installed .venv-newest-$(ON)/installed: pyproject.toml constraints.txt
	test -x $(@D)/bin/pip || $(PYTHON) -m venv --clear $(@D)
	grep '^torch==' constraints.txt > $(@D)/constraints.txt
	$(if $(findstring lowest,$@),$(PYTHON) tests/lowest_versions.py $(subst $(comma), ,$(WITH)) >> $(@D)/constraints.txt)
	$(@D)/bin/python -m pip install --quiet --upgrade --constraint $(@D)/constraints.txt --editable '.[$(WITH)]'
	touch $@

# Kubernetes' definition of pod templates, for kuberay lint. The package contains the definitions of all versions.
KUBERNETES_VALIDATE := kubernetes_validate-1.37.0-py3-none-any.whl
pod-template-schema: install
	$(BIN)/python -m pip download --quiet --no-deps --dest .venv 'kubernetes-validate==1.37.0'
	$(BIN)/python tests/pod_template_schema.py .venv/$(KUBERNETES_VALIDATE) tune_policies/kuberay/lint/pod_template.json

# Libraries that call Tune or run beside it, each with pinned versions in its own environment:
# make test-libraries LIBRARY=flaml
LIBRARIES := huggingface flaml neuralforecast ultralytics autogluon ludwig beside_serve
LIBRARY := $(LIBRARIES)
NEEDS-huggingface := transformers==5.23.0 accelerate==1.15.0 torch==2.13.0
NEEDS-flaml := 'flaml[automl]==2.7.0'
NEEDS-neuralforecast := neuralforecast==3.3.0 torch==2.13.0
NEEDS-ultralytics := ultralytics==8.4.190
# AutoGluon requires Ray 2.58 or older.
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

# The wheel in a new environment, into which pip installs only the declared dependencies, and the README's program.
test-wheel: .venv-wheel/installed
	sed --quiet '/^```python$$/,/^```$$/{//!p}' README.md > .venv-wheel/first.py
	cd .venv-wheel && RAY_USAGE_STATS_ENABLED=0 bin/python first.py
	.venv-wheel/bin/tune-policies schema > .venv-wheel/schema.json

.venv-wheel/installed: install
	rm -rf dist .venv-wheel
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet --constraint constraints.txt dist/*.whl
	touch $@

# The software bill of materials of a release: the wheel and its dependencies, in CycloneDX's format.
CYCLONEDX := cyclonedx-bom==7.5.0
sbom: .venv-wheel/installed
	$(PYTHON) -m venv --clear .venv-sbom
	.venv-sbom/bin/python -m pip install --quiet '$(CYCLONEDX)'
	.venv-sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON \
		--output-file dist/sbom.cdx.json .venv-wheel/bin/python

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Builds the site in build/site. A broken link or an unresolved name is an error. Then checks search and pages.
docs: install
	rm -rf docs/reference/generated build/site
	$(BIN)/python -m sphinx --builder html --nitpicky --fail-on-warning --keep-going --quiet --jobs auto docs build/site
	$(BIN)/python docs/check_search.py build/site

bench: install
	$(BIN)/python -m tests.evidence planning

# Counts how many small mistakes in placement, plans, policies and the core of a run the unit tests detect.
mutate: install
	$(BIN)/python -m tests.evidence mutants

clean:
	rm -rf .venv .venv-ray-* .venv-library-* .venv-lowest-* .venv-newest-* .venv-wheel .venv-sbom build dist docs/reference/generated *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
