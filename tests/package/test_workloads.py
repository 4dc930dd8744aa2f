"""The workloads that come with the benchmarks, on the CPU: their work is the same each time."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from ray import tune

from benchmarks.measuring.frameworks import jax_device, tensorflow_device, torch_device
from benchmarks.packing.trainings import WORKLOADS, train_workload
from benchmarks.workloads.registry import BUILT_IN, SYNTHETIC, load_workload
from benchmarks.workloads.torch_models import MODELS
from tune_policies import ProbeError

# What needs a Ray is in tests/on_ray/test_iterative_workload.py; a step of ResNet-50 takes a second on a CPU.
SMALL = {name: 16 for name in (*BUILT_IN, *SYNTHETIC) if not name.startswith("resnet50") and name != "iterative-tasks"}
SMALL["boosting"] = SMALL["doubling"] = 1_024
TRAINING = ["mlp", "cnn", "transformer", "tf-mlp", "tf-cnn"]
BY_FRAMEWORK = ["mlp", "tf-mlp", "doubling", "boosting", "iterative-actor"]


def losses(step, number):
    return [float(step()) for _ in range(number)]


def first_epoch(name):
    steps = load_workload(name)(SMALL[name], "cpu")
    return losses(steps.with_transfers, steps.steps_per_epoch)


@pytest.mark.parametrize("name", SMALL)
def test_two_preparations_do_the_same_work(name):
    first, second = (first_epoch(name) for _ in range(2))

    assert first == pytest.approx(second, rel=1e-5)
    assert all(map(math.isfinite, first))


@pytest.mark.parametrize("name", [name for name in SMALL if name != "iterative-actor"])
def test_a_step_on_the_device_gives_the_same_as_one_from_host_memory(name):
    moved, kept = (load_workload(name)(SMALL[name], "cpu") for _ in range(2))

    assert losses(kept.compute, 2) == pytest.approx(losses(moved.with_transfers, 2), rel=1e-5)


@pytest.mark.parametrize("name", TRAINING)
def test_a_training_learns_its_batches(name):
    steps = load_workload(name)(SMALL[name], "cpu")

    epochs = [np.mean(losses(steps.compute, steps.steps_per_epoch)) for _ in range(10)]

    assert epochs[-1] < epochs[0]


@pytest.mark.parametrize("name", BY_FRAMEWORK)
def test_a_workload_refuses_a_gpu_that_its_framework_does_not_see(name):
    with pytest.raises(ProbeError, match="sees no gpu in this process, and the CPU is not measured in its place"):
        load_workload(name)(SMALL[name], "gpu")


@pytest.mark.parametrize("device_of", [torch_device, tensorflow_device, jax_device])
def test_a_framework_names_the_family_that_it_does_not_see(device_of):
    with pytest.raises(ProbeError, match="sees no TPU in this process"):
        device_of("TPU")


def test_a_matrix_product_ends_in_the_last_element():
    import torch

    steps = load_workload("matmul")(3, "cpu")
    torch.manual_seed(0)
    first, second = torch.rand(2, 3, 3).tolist()

    expected = sum(first[2][index] * second[index][2] for index in range(3))
    assert losses(steps.compute, 1) == pytest.approx([expected])


def test_doubling_doubles():
    steps = load_workload("doubling")(100, "cpu")

    assert losses(steps.compute, 1) == [2 * np.random.default_rng(0).random(100, dtype=np.float32)[-1]]


def test_doubling_uses_the_threads_that_its_process_was_set_to(monkeypatch):
    from numba import get_num_threads

    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    losses(load_workload("doubling")(100, "cpu").compute, 1)

    assert get_num_threads() == 1


ON_A_SIMULATED_GPU = """
from benchmarks.workloads.registry import load_workload
here, there = (load_workload("doubling")(300, device) for device in ("cpu", "gpu"))
assert float(there.compute()) == float(there.with_transfers()) == float(here.compute())
"""


def test_the_kernel_for_cuda_gives_what_its_twin_gives():
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}

    done = subprocess.run(
        [sys.executable, "-c", ON_A_SIMULATED_GPU], env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_the_heat_of_a_ring_stays_and_evens_out():
    import torch

    from benchmarks.workloads.iterative import _iterated

    ring = torch.tensor([4.0, 0.0, 0.0, 0.0])

    assert _iterated(ring).tolist() == [2.0, 1.0, 0.0, 1.0]


def test_resnet_50_has_the_weights_of_the_published_one():
    weights = sum(weight.numel() for weight in MODELS["resnet50"].build().parameters())

    assert weights == 25_557_032


def test_the_residual_network_for_small_images_has_the_size_of_resnet_18():
    weights = sum(weight.numel() for weight in MODELS["resnet18"].build().parameters())

    assert weights == pytest.approx(11.2e6, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name.startswith("resnet50")])
def test_resnet_50_trains(name):
    steps = load_workload(name)(1, "cpu")

    assert all(map(math.isfinite, losses(steps.with_transfers, steps.steps_per_epoch)))


def test_the_synthetic_work_takes_what_it_says():
    import time

    steps = load_workload("affine")(2_000, "gpu")

    start = time.perf_counter()
    steps.compute()

    assert time.perf_counter() - start >= 1.1e-3


def reports(monkeypatch, **config):
    seen = []
    monkeypatch.setattr(tune, "report", seen.append)
    train_workload({"num_steps": 3, "num_reports": 2, "seed": 0, **config})
    return seen


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_trains_the_same_trial(name, monkeypatch):
    first, second = (reports(monkeypatch, workload=name) for _ in range(2))

    assert first == second
    assert [each["steps"] for each in first] == [2, 3]
