"""Runs examples on simulated GPUs. The trials of these examples do not use the devices."""

import pytest

from tests.on_ray.examples import run_example

RAY = {"num_cpus": 4, "num_gpus": 4}

pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")]


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        pytest.param("tune_model_parallel", {2}, marks=pytest.mark.slow),
        ("tune_resume", {0.5, 1}),
    ],
)
def test_each_trial_of_an_example_gets_the_expected_gpus(name, gpus, tmp_path):
    results = run_example(name, tmp_path)

    assert {result["gpu_memory"]["gpus"] for result in results} == gpus
