"""Tests of the arguments of ``run`` that are refused before Tune starts."""

import pytest

from tune_policies import CpuPolicy, InvalidResourcesError, run


@pytest.mark.parametrize(
    ("resources", "advice"),
    [
        pytest.param({"cpu": 2}, "Write the amounts in the policy: CpuPolicy(cpus=2)", id="CPUs"),
        pytest.param({"cpu": 2, "gpu": 0}, "Write the amounts in the policy: CpuPolicy(cpus=2)", id="no GPUs"),
        pytest.param({"cpu": 2, "gpu": 0.5}, "the policy: GpuPolicy(gpus=0.5, cpus=2)", id="CPUs and GPUs"),
        pytest.param({"cpu": 2, "license": 0}, "the policy: CpuPolicy(cpus=2)", id="none of another resource"),
        pytest.param({"cpu": 2, "license": 1}, "such as GpuPolicy(gpus=0.5, cpus=2)", id="another resource"),
        pytest.param({"cpu": 0}, "such as GpuPolicy(gpus=0.5, cpus=2)", id="nothing"),
        pytest.param({"cpu": "two"}, "such as GpuPolicy(gpus=0.5, cpus=2)", id="no number"),
    ],
)
def test_the_error_for_resources_per_trial_contains_the_policy_to_write(resources, advice):
    with pytest.raises(InvalidResourcesError) as caught:
        run(lambda config: None, CpuPolicy(), resources_per_trial=resources)

    assert str(caught.value).endswith(advice)
