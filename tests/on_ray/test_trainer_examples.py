"""The examples of the trainers, as a user runs them, on two workers each."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.timeout(250)
@pytest.mark.parametrize(
    ("name", "metric", "most"),
    [
        ("huggingface", "training loss", 0.5),
        ("jax", "loss", 0.01),
        ("lightgbm", "training error", 0.1),
        ("lightning", "training loss", 2.0),
        ("xgboost", "training error", 0.1),
    ],
)
def test_it_trains_a_model_on_two_workers(name, metric, most, tmp_path, environment_of_its_own):
    printed = run_example(name, tmp_path, environment_of_its_own)

    assert float(printed.rpartition(f"{metric}: ")[2].split()[0]) < most


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_keras_learns_on_two_workers(tmp_path, environment_of_its_own):
    printed = run_example("tensorflow", tmp_path, environment_of_its_own)

    assert float(printed.rpartition("training accuracy: ")[2].split()[0]) > 0.8


def run_example(name, folder, environment):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"train_{name}.py"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
