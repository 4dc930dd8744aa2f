"""Tests that each built-in workload does the same work in every run on the CPU."""

import functools
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from ray import tune

from tests.rest_parameters import further
from tests.workload_facts import facts, losses, refusal
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.measuring.packing import config_of, default_trainings, train_workload
from tune_policies.benchmarks.measuring.timed_workload import wait_for_devices
from tune_policies.benchmarks.workloads.registry import BUILT_IN, check_needs, find_workload, load_workload
from tune_policies.benchmarks.workloads.steps import jax_device, torch_device

pytestmark = pytest.mark.ci

IN_TENSORFLOW = ["tf-mlp", "tf-cnn"]
TRAINING = ["mlp", "cnn", "transformer", *further(*IN_TENSORFLOW)]
# Workloads that need Ray are tested in tests/on_ray/benchmarks/test_iterative_workload.py. ``QUICK`` omits ResNet-50,
# because one of its steps takes a second.
SIMULATIONS = ["raytracing", "heat-2d", "heat-3d", "n-body"]
QUICK = [*TRAINING, *SIMULATIONS, "matmul", "doubling", "branching", "boosting", "iterative-actor"]
SIZE = 8


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Use one thread, because several threads would spend most of a small step waiting for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def facts_of(name):
    try:
        check_needs(find_workload(name))
    except InvalidResourcesError as error:
        pytest.skip(str(error))
    return _facts_in_tensorflow()[name] if name in IN_TENSORFLOW else facts(name, SIZE)


@functools.cache
def _facts_in_tensorflow():
    """Return the facts of TensorFlow workloads from a separate process, because TensorFlow conflicts with OR-Tools."""
    return json.loads(run("-m", "tests.workload_facts", str(SIZE), *IN_TENSORFLOW).splitlines()[-1])


def run(*arguments, **variables):
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", QUICK)
def test_a_workload_does_the_same_work_after_each_preparation(name):
    first, second = facts_of(name)["first"], facts_of(name)["second"]

    assert first == pytest.approx(second, rel=1e-5)
    assert all(map(math.isfinite, first))


@pytest.mark.parametrize("name", [name for name in QUICK if name != "iterative-actor"])
def test_a_step_returns_the_same_result_from_device_memory_and_host_memory(name):
    assert facts_of(name)["kept"] == pytest.approx(facts_of(name)["first"], rel=1e-5)


@pytest.mark.parametrize("name", TRAINING)
def test_the_loss_of_a_training_decreases(name):
    assert np.mean(facts_of(name)["later"]) < np.mean(facts_of(name)["first"])


@pytest.mark.parametrize("name", QUICK)
def test_a_workload_raises_an_error_if_its_library_sees_no_gpu(name):
    import torch

    if torch.cuda.is_available():
        pytest.skip("a GPU is visible in this process")

    assert "detects no gpu in this process, and CPU times would be misleading" in facts_of(name)["refusal"]


@pytest.mark.parametrize(("framework", "device_of"), [("torch", torch_device), ("jax", jax_device)])
def test_the_error_contains_the_device_family_that_a_framework_does_not_see(framework, device_of):
    pytest.importorskip(framework)

    assert "detects no TPU in this process" in refusal(lambda: device_of("TPU"))


def test_matmul_multiplies_matrices():
    import torch

    torch.manual_seed(0)
    first, second = torch.rand(2, SIZE, SIZE).tolist()

    expected = sum(first[-1][index] * second[index][-1] for index in range(SIZE))
    assert facts_of("matmul")["first"] == pytest.approx([expected])


def test_the_doubling_workload_doubles_its_input():
    assert facts_of("doubling")["first"] == [2 * np.random.default_rng(0).random(SIZE, dtype=np.float32)[-1]]


def test_doubling_uses_the_thread_count_of_omp_num_threads(monkeypatch):
    numba = pytest.importorskip("numba")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    losses(load_workload("doubling")(SIZE, "cpu").compute, 1)

    assert numba.get_num_threads() == 1


ON_A_SIMULATED_GPU = """
import sys
from tune_policies.benchmarks.workloads.registry import load_workload
here, there = (load_workload(sys.argv[1])(300, device) for device in ("cpu", "gpu"))
assert float(there.compute()) == float(there.with_transfers()) == float(here.compute())
"""


@pytest.mark.parametrize("name", ["doubling", *further("branching")])
def test_the_cuda_kernel_and_the_cpu_kernel_return_the_same_result(name):
    pytest.importorskip("numba")

    run("-c", ON_A_SIMULATED_GPU, name, NUMBA_ENABLE_CUDASIM="1")


WITHOUT_ROW_STACK = """
import numpy
vars(numpy).pop("row_stack", None)
from tune_policies.benchmarks.workloads import numba_kernels
assert numpy.row_stack is numpy.vstack
"""


def test_the_name_that_numba_cuda_uses_and_numpy_2_5_removed_exists():
    pytest.importorskip("numba")

    run("-c", WITHOUT_ROW_STACK)


@pytest.mark.parametrize(("name", "num_dimensions"), [("heat-2d", 2), ("heat-3d", 3)])
def test_a_cosine_temperature_decays_as_the_numerical_scheme_predicts(name, num_dimensions):
    """A cosine is an eigenvector of the periodic stencil, with a known eigenvalue."""
    import torch

    from tune_policies.benchmarks.workloads.simulations import _DIFFUSION, NUM_UPDATES, _diffused

    wave = torch.cos(2 * torch.pi * torch.arange(16, dtype=torch.float64) / 16)
    grid = wave.reshape(-1, *[1] * (num_dimensions - 1)).expand((16,) * num_dimensions)
    factor = (1 - 2 * _DIFFUSION * (1 - math.cos(2 * math.pi / 16))) ** NUM_UPDATES

    assert _diffused(grid).numpy() == pytest.approx((factor * grid).numpy(), abs=1e-12)


def test_bodies_move_according_to_newtons_law_and_conserve_momentum():
    import torch

    from tune_policies.benchmarks.workloads.simulations import _SOFTENING, _accelerations, _speeds

    two = torch.tensor([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0]], dtype=torch.float64)
    expected = 0.5 * 3 / (9 + _SOFTENING**2) ** 1.5

    assert _accelerations(two)[:, 0].tolist() == pytest.approx([expected, -expected])
    assert _speeds(torch.rand(20, 3, dtype=torch.float64)).sum(0).abs().max() < 1e-12


def test_the_ray_tracer_draws_lit_spheres_shadows_and_the_sky():
    from tune_policies.benchmarks.workloads.simulations import _AMBIENT, _SKY, _rays, _rendered

    image = _rendered(_rays(64)).reshape(64, 64)

    assert (image[0] == _SKY).all()
    assert (image[-1] != _SKY).all()  # the floor
    assert image.max() > 0.9
    assert 10 < (image == _AMBIENT).sum() < 64 * 64 / 2


# The expected numbers of weights are from torchvision, with 10 classes for ResNet-18. The first convolution of this
# project's ResNet-18 is smaller.
@pytest.mark.parametrize(("name", "number"), [("resnet18", 11_181_642), ("resnet50", 25_557_032)])
def test_a_residual_network_has_about_as_many_weights_as_in_torchvision(name, number):
    from tune_policies.benchmarks.workloads.torch_workloads import MODELS

    assert sum(weight.numel() for weight in MODELS[name].build().parameters()) == pytest.approx(number, rel=0.002)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name.startswith("resnet50")])
def test_resnet_50_trains(name):
    steps = load_workload(name)(1, "cpu")

    assert all(map(math.isfinite, losses(steps.with_transfers, steps.steps_per_epoch)))


def reports(monkeypatch, training):
    seen = []
    monkeypatch.setattr(tune, "report", seen.append)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")  # the trial changes it
    train_workload({**config_of(training, seed=0), "num_steps": 3})
    return seen


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(each, marks=getattr(pytest.mark, "slow" if "resnet" in each.name else "rest"), id=each.name)
        for each in default_trainings()
    ],
)
def test_two_trials_of_a_training_do_the_same_work(training, monkeypatch):
    first, second = (reports(monkeypatch, training) for _ in range(2))

    assert first == second
    assert [each["steps"] for each in first] == [1, 2, 3]


def test_devices_are_awaited_if_tensorflow_is_in_graph_mode():
    tensorflow = pytest.importorskip("tensorflow")

    with tensorflow.Graph().as_default():  # importing RLlib also disables eager execution
        wait_for_devices(None)
