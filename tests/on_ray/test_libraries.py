"""Runs unchanged examples under a policy. In the examples, a library calls Tune, or Ray Serve runs next to Tune.

`make test-libraries` creates an environment for each library and runs its test there.
"""

import importlib.util
import re
import subprocess
import sys

import pytest
from ray.tune import ExperimentAnalysis

from tests.on_ray.examples import EXAMPLES

LIBRARIES = {  # the required module, and the number of trials in the example
    "huggingface": ("transformers", 3),
    "flaml": ("flaml", 4 + 4),
    "neuralforecast": ("neuralforecast", 3),
    "ultralytics": ("ultralytics", 2),
    "autogluon": ("autogluon", 3),
    "ludwig": ("ludwig", 2),
    "beside_serve": ("grpc_reflection", 3),
}


@pytest.fixture
def environment(isolated_environment, tmp_path):
    # Ultralytics saves its runs in a different folder if it detects pytest.
    without_pytest = {name: value for name, value in isolated_environment.items() if not name.startswith("PYTEST_")}
    offline = {"HF_HUB_OFFLINE": "1", "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    return {**without_pytest, **offline, "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}


def run_library(name, folder, environment):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "libraries" / f"tune_{name}.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def trials_in(folder):
    """Return the trials of every experiment below ``folder``."""
    experiments = {path.parent for path in folder.rglob("experiment_state-*.json")}
    return [trial for experiment in experiments for trial in ExperimentAnalysis(str(experiment)).trials]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")  # warnings depend on the version of the library
@pytest.mark.parametrize("name", LIBRARIES)
def test_trials_of_a_library_get_the_slots_of_the_policy(name, tmp_path, environment):
    module, num_trials = LIBRARIES[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed. Run make test-libraries LIBRARY={name}")

    output = run_library(name, tmp_path, environment)

    assert set(re.findall(r"in a slot of (.+)", output)) == {"1 CPU"}
    assert [
        (trial.last_result["slot"], trial.placement_group_factory.required_resources) for trial in trials_in(tmp_path)
    ] == [("1 CPU", {"CPU": 1})] * num_trials


def test_every_library_example_is_tested():
    assert {path.stem for path in (EXAMPLES / "libraries").glob("*.py")} == {f"tune_{name}" for name in LIBRARIES}
