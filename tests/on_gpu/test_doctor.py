"""Tests that the doctor reads the properties of real GPUs."""

import pytest

from tests.on_gpu.device import evaluate_with_torch
from tune_policies.probe.doctor.cluster_reader import examine

pytestmark = pytest.mark.gpu


def test_the_gpus_and_their_driver_are_read():
    model = evaluate_with_torch("torch.cuda.get_device_name(0)")

    (node,) = examine("local").nodes

    assert node.nvml_error is None
    assert model in {gpu.name for gpu in node.gpus}
    assert node.driver_version
    assert node.cuda_version


def test_a_gpu_that_torch_can_use_causes_no_finding_about_the_driver_or_the_torch_build():
    findings = [found.what for found in examine("local").findings]

    assert not [what for what in findings if what.startswith("torch ") or "driver does not answer" in what]
