"""Compares the memory estimate with the peak of a real training on the CPU, where tensors are as large as on a GPU."""

import functools
import resource
import subprocess
import sys

import pytest
import ray
import torch
from torch import nn

from tests import models
from tests.clusters import gpu_node
from tests.rest_parameters import further
from tune_policies import (
    ClusterCapacity,
    GpuMemoryPolicy,
    InfeasibleRequestError,
    MeasurementError,
)
from tune_policies.trainers import GpuMemoryEstimate, estimate_gpu_memory, measure_gpu_memory, plan_by_measuring

GIB = 2**30
TRAININGS = {
    "mlp": models.mlp(batch=256, width=512),
    "resnet": models.resnet(batch=8, size=64, width=32),
    "transformer": models.transformer(batch=8, length=64),
}


def peak_of_tensors(train):
    """Return the peak allocation of PyTorch's CPU allocator during ``train``, in bytes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        train()
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, *further(functools.partial(torch.optim.SGD, lr=0.1))])
@pytest.mark.parametrize("kind", ["mlp", *further("transformer", "resnet")])
def test_the_estimate_is_within_15_percent_of_the_real_peak(kind, optimizer, monkeypatch):
    # The buffers of oneDNN's convolutions depend on the processor and grow with the number of threads.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    training = TRAININGS[kind]
    on_gpus = functools.partial(optimizer, foreach=True)  # ``foreach`` is PyTorch's default on GPUs

    real = peak_of_tensors(lambda: training.train(on_gpus, 2, "cpu"))
    estimate = estimate_gpu_memory(training.build, training.batch, optimizer, training.loss_fn)

    assert estimate.peak_bytes == pytest.approx(real, rel=0.15)


def linear(width=1024, depth=1):
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(depth)))


def test_the_peak_is_the_sum_of_the_estimated_parts():
    estimate = estimate_gpu_memory(linear, (1, 1024), torch.optim.Adam)
    size = 4 * 1024**2

    assert (estimate.parameters_bytes, estimate.gradients_bytes) == (size, size)
    assert 2 * size <= estimate.optimizer_bytes <= 4 * size
    assert estimate.peak_bytes == sum(
        (estimate.parameters_bytes, estimate.gradients_bytes, estimate.optimizer_bytes, estimate.activations_bytes)
    )
    assert estimate.total_bytes == estimate.peak_bytes + estimate.overhead_bytes


def test_the_estimate_for_a_model_of_100_gib_uses_less_than_1_gib():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    estimate = estimate_gpu_memory(lambda: linear(32_768, 25), (8, 32_768), torch.optim.AdamW)

    assert estimate.parameters_bytes == 100 * GIB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # in KiB


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, left, right):
        return {"both": self.layer(left) + self.layer(right)}


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param((torch.ones(4, 8), torch.ones(4, 8)), id="tensors"),
        pytest.param({"left": torch.ones(4, 8), "right": (4, 8)}, id="by keyword"),
        pytest.param(lambda: (torch.ones(4, 8), torch.ones(4, 8)), id="a function"),
    ],
)
def test_a_batch_can_have_any_form_that_the_model_accepts(batch):
    estimates = [estimate_gpu_memory(TwoInputs, each) for each in (batch, lambda: (torch.ones(4, 8), torch.ones(4, 8)))]

    assert estimates[0] == estimates[1]
    assert estimates[0].activations_bytes >= 2 * 4 * 8 * 4


def three_layers():
    return nn.Sequential(linear(512), nn.ReLU(), linear(512))


def frozen_first():
    model = three_layers()
    model[0].requires_grad_(False)
    return model


def tied():
    layer = nn.Linear(512, 512, bias=False)
    return nn.Sequential(layer, nn.Sequential(layer)).to("cpu").bfloat16()


BUILT = three_layers()


@pytest.mark.parametrize(
    ("model_fn", "parameters", "gradients"),
    [
        pytest.param(three_layers, 2, 2, id="unchanged"),
        pytest.param(frozen_first, 2, 1, id="with frozen parameters"),
        pytest.param(lambda: three_layers().to("cpu").half(), 1, 1, id="moved and converted to half"),
        pytest.param(lambda: BUILT, 2, 2, id="built earlier"),
    ],
)
def test_a_model_can_be_frozen_converted_or_built_earlier(model_fn, parameters, gradients):
    size = 4 * 512**2

    estimate = estimate_gpu_memory(model_fn, (1, 512), torch.optim.AdamW)

    assert (estimate.parameters_bytes, estimate.gradients_bytes) == (parameters * size, gradients * size)


def test_shared_parameters_remain_shared_after_a_conversion():
    assert estimate_gpu_memory(tied, (1, 512)).parameters_bytes == 2 * 512**2


def test_the_estimate_does_not_change_a_model_that_was_built_earlier():
    estimate_gpu_memory(lambda: BUILT, (1, 512), torch.optim.AdamW)

    assert type(BUILT[0][0].weight.data) is torch.Tensor
    assert BUILT[0][0].weight.grad is None
    assert nn.Linear(2, 2).half().weight.dtype is torch.half  # PyTorch's own conversion still works


class Masked(nn.Linear):
    """A layer whose mask and scales are neither parameters nor buffers."""

    def __init__(self):
        super().__init__(8, 8)
        self.mask = torch.ones(8)
        self.scales = [torch.ones(8)]

    def forward(self, x):
        return super().forward(x) * self.mask * self.scales[0]


def test_a_model_that_was_built_earlier_can_have_tensors_in_attributes():
    model = Masked()

    built_earlier, built = (estimate_gpu_memory(build, (4, 8), torch.optim.AdamW) for build in (lambda: model, Masked))

    assert built_earlier == built
    assert type(model.mask) is torch.Tensor


def test_a_loss_function_can_contain_tensors():
    batch, loss = (torch.ones(4, 8), torch.zeros(4, dtype=torch.long)), nn.CrossEntropyLoss(weight=torch.ones(3))

    assert estimate_gpu_memory(lambda: nn.Linear(8, 3), batch, torch.optim.AdamW, loss).peak_bytes > 0


class DataDependent(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else x


@pytest.mark.parametrize(
    ("model_fn", "batch", "kwargs", "message"),
    [
        (lambda: nn.Linear(8, undefined), (4, 8), {}, "model_fn failed without data: NameError"),  # noqa: F821
        (lambda: 7, (4, 8), {}, r"model_fn did not return a torch.nn.Module"),
        (
            lambda: nn.Linear(8, 1),
            (4, 9),
            {},
            "the model rejects the batch, or depends on the values in the batch: RuntimeError",
        ),
        (lambda: nn.Linear(8, 1), lambda: 1 / 0, {}, "the batch cannot be created: ZeroDivisionError"),
        (lambda: nn.Linear(8, 1), (4, 8), {"loss_fn": nn.MSELoss()}, "the batch must be a pair of the model's input"),
        (lambda: nn.Linear(8, 1), ((4, 8), (5, 3)), {"loss_fn": nn.MSELoss()}, "loss_fn failed: RuntimeError"),
        (
            lambda: nn.Linear(8, 1),
            (4, 8),
            {"optimizer": lambda _: 1 / 0},
            "the optimizer cannot be created: ZeroDivisionError",
        ),
        (lambda: nn.Flatten(), (4, 8), {}, "the output has no tensor that depends on a parameter"),
        (
            lambda: DataDependent(8, 8),
            (4, 8),
            {},
            "the model rejects the batch, or depends on the values in the batch: DataDep",
        ),
    ],
)
def test_an_error_names_the_part_that_failed(model_fn, batch, kwargs, message):
    with pytest.raises(MeasurementError, match=message):
        estimate_gpu_memory(model_fn, batch, **kwargs)


def test_the_explanation_lists_the_parts_and_the_unknown_memory():
    text = estimate_gpu_memory(lambda: linear(8192), (1, 8192), torch.optim.AdamW).explain()

    assert text.splitlines()[:3] == [
        "2.1 GiB of GPU memory, estimated. At the peak of a training step:",
        "  256 MiB parameters",
        "  256 MiB gradients that exist at this moment",
    ]
    assert "  - not included: workspaces of cuBLAS and cuDNN, which depend on the chosen kernels" in text


def test_the_explanation_ends_with_a_policy_that_has_room_for_the_estimate():
    estimate = estimate_gpu_memory(lambda: linear(8192), (1, 8192), torch.optim.AdamW)

    policy = eval(estimate.explain().splitlines()[-1].removeprefix("write "), {"GpuMemoryPolicy": GpuMemoryPolicy})

    assert 1.1 <= policy.gpu_memory / estimate.total_bytes < 1.2


def test_the_explanation_states_that_the_peak_is_before_most_gradients_exist():
    """With a large batch, the peak is at the start of the backward pass, when only the last gradients exist."""
    text = estimate_gpu_memory(lambda: linear(1024), (2**18, 1024)).explain()

    assert "(at this moment, most gradients do not exist yet)" in text


PARTS = ("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
EIGHT_GIB = GpuMemoryEstimate(**dict.fromkeys(PARTS, 2 * GIB), peak_bytes=8 * GIB, overhead_bytes=1)
HUGE = EIGHT_GIB.model_copy(update={"peak_bytes": 1024 * GIB})
T4S = ClusterCapacity.of(gpu_node("a", gpus=2).model_copy(update={"accelerator_type": "T4"}))


@pytest.mark.parametrize(
    ("estimate", "gpus", "sentence"),
    [
        pytest.param(
            HUGE,
            {},
            "this is more than any NVIDIA GPU of Ray's types has. The largest, GB300, ",
            id="no type is enough",
        ),
        pytest.param(
            HUGE, {"accelerator_type": "L4"}, "this is more than L4 has (22.5 GiB)", id="the named type is too small"
        ),
        pytest.param(
            HUGE,
            {"capacity": T4S},
            "this is more than the largest GPU of the cluster has",
            id="the cluster is too small",
        ),
        pytest.param(
            EIGHT_GIB,
            {"gpu_memory": "8.5GiB"},
            "with headroom (8.8 GiB), this is more than the GPU has (8.5 GiB)",
            id="too small only with headroom",
        ),
        pytest.param(
            EIGHT_GIB,
            {"capacity": T4S, "accelerator_type": "L4"},
            "the cluster has no GPU of type L4",
            id="another type",
        ),
        pytest.param(EIGHT_GIB, {"capacity": T4S}, "1 trial of this size would fit on the largest GPU", id="it fits"),
        pytest.param(
            EIGHT_GIB, {"accelerator_type": "H100"}, "9 trials of this size would fit on H100", id="several fit"
        ),
        pytest.param(
            EIGHT_GIB,
            {},
            "the smallest NVIDIA GPU of Ray's types with enough memory is T4 (14.7 GiB)",
            id="by default, the smallest GPU of NVIDIA that current builds of PyTorch support",
        ),
        pytest.param(
            EIGHT_GIB,
            {"accelerator_type": "K80"},
            "1 trial of this size would fit on K80 (11.2 GiB)",
            id="a named type that current builds of PyTorch do not support",
        ),
        pytest.param(
            EIGHT_GIB.model_copy(update={"peak_bytes": int(6.9 * GIB)}),
            {"accelerator_type": "T4"},
            '1 trial of this size would fit on T4 (14.7 GiB), or 2 with gpu_memory="7.3GiB", which adds 6% to the '
            "estimate instead of 10%",
            id="one more with slightly less headroom",
        ),
        pytest.param(
            HUGE.model_copy(update={"peak_bytes": 60 * GIB}),
            {"accelerator_type": "AMD-Instinct-MI210"},
            "Use a smaller batch, or a GPU with more memory, such as AMD-Instinct-MI308X (190.1 GiB)",
            id="a larger GPU of the same vendor",
        ),
        pytest.param(
            EIGHT_GIB,
            {"accelerator_type": "RTX4090"},
            "the memory of RTX4090 is unknown; did you mean 'GeForce-RTX-4090'? Pass the memory that the driver "
            'reports, as in explain(accelerator_type="RTX4090", gpu_memory="24GiB")',
            id="a type of unknown memory that is similar to a known type",
        ),
        pytest.param(
            EIGHT_GIB,
            {"accelerator_type": "RTX4090", "gpu_memory": "24GiB"},
            "2 trials of this size would fit on RTX4090 (24 GiB)",
            id="a type with the memory",
        ),
        pytest.param(
            EIGHT_GIB,
            {"capacity": ClusterCapacity.of(gpu_node("a"))},
            "the memory of the cluster's GPUs is unknown. Pass the memory that the driver reports, as in "
            'explain(gpu_memory="24GiB")',
            id="a cluster with unknown memory",
        ),
    ],
)
def test_the_explanation_states_whether_the_estimate_fits_on_the_gpus(estimate, gpus, sentence):
    assert sentence in estimate.explain(**gpus).splitlines()[-2]


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(100, 8), nn.Linear(8, 8)

    def forward(self, ids):
        return self.linear(self.embedding(ids))


class OnGpu(nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.zeros(8, device="cuda"))


NO_GPU_NEEDED = 'The estimate needs no GPU. Remove .cuda(), .to("cuda") and device="cuda"'
CROSS_ENTROPY = {"loss_fn": nn.functional.cross_entropy}


@pytest.mark.parametrize(
    ("model_fn", "batch", "kwargs", "hint"),
    [
        pytest.param(lambda: OnGpu(8, 8), (4, 8), {}, NO_GPU_NEEDED, id="the model creates tensors on the GPU"),
        pytest.param(
            lambda: linear(8),
            (4, 8),
            {"optimizer": lambda parameters: torch.optim.AdamW(parameters, capturable=True)},
            "this option does. Omit capturable=True in optimizer for the estimate",
            id="an optimizer for CUDA graphs",
        ),
        pytest.param(Tokens, (4, 8), {}, "Write batch=torch.zeros(4, 8, dtype=torch.long)", id="a shape for tokens"),
        pytest.param(
            Tokens, {"ids": (4, 8)}, {}, 'Write "ids": torch.zeros(4, 8, dtype=torch.long) in batch', id="keyword"
        ),
        pytest.param(
            lambda: nn.Linear(8, 8),
            ((4, 8), (4,)),
            CROSS_ENTROPY,
            "Write torch.zeros(4, dtype=torch.long) instead of (4,) in batch",
            id="a shape for class labels",
        ),
    ],
)
def test_an_error_of_pytorch_is_followed_by_what_to_write(model_fn, batch, kwargs, hint, capfd):
    with pytest.raises(MeasurementError) as caught:
        estimate_gpu_memory(model_fn, batch, **kwargs)

    assert hint in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err  # PyTorch's log


@pytest.mark.skipif(torch.cuda.is_available(), reason="requires a machine without a GPU")
@pytest.mark.parametrize(
    "model_fn", [lambda: linear(8).cuda(), lambda: linear(8).to("cuda"), lambda: nn.Linear(8, 8, device="cuda")]
)
def test_the_error_for_a_model_on_a_gpu_says_that_the_estimate_needs_no_gpu(model_fn):
    with pytest.raises(MeasurementError) as caught:
        estimate_gpu_memory(model_fn, (4, 8))

    assert NO_GPU_NEEDED in str(caught.value)


WITHOUT = """
import sys
sys.modules[sys.argv[1]] = None
from tune_policies.trainers import estimate_gpu_memory
try:
    estimate_gpu_memory(lambda: None, (1,))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("torch", "MeasurementError the estimate requires PyTorch"),
        (
            "torch.distributed._tools.mem_tracker",
            "cannot track a model's tensors, because it has no MemTracker. Install PyTorch 2.5",
        ),
    ],
)
def test_the_error_for_a_missing_package_contains_the_install_command(missing, message):
    done = subprocess.run([sys.executable, "-c", WITHOUT, missing], capture_output=True, text=True, check=False)

    assert message in done.stdout, done.stderr


WITHOUT_GPUS = ClusterCapacity.of(gpu_node("a", gpus=0))
SIMULATED = ClusterCapacity.of(gpu_node("a").model_copy(update={"has_simulated_gpus": True}))


@pytest.mark.parametrize("measure", [plan_by_measuring, *further(measure_gpu_memory)])
@pytest.mark.parametrize(
    ("capacity", "reason"),
    [
        pytest.param(WITHOUT_GPUS, "the cluster has no GPU", id="without GPUs"),
        pytest.param(SIMULATED, "the GPUs of the cluster are simulated", id="with simulated GPUs"),
    ],
)
def test_measuring_without_a_gpu_is_refused_before_ray_starts_and_names_the_estimate(measure, capacity, reason):
    with pytest.raises(InfeasibleRequestError) as caught:
        measure(lambda config: None, [{"batch": 8}], capacity=capacity)

    assert f"1 GPU, because memory is measured on a GPU, but {reason}" in str(caught.value)
    assert "Without a GPU, estimate_gpu_memory(model_fn, batch) estimates the memory" in str(caught.value)
    assert not ray.is_initialized()


def test_the_estimate_that_the_refusal_of_a_measurement_names_ends_with_a_valid_policy():
    """The refusal says: "its explain() ends with the policy to write"."""
    model_fn, batch = lambda: linear(64), (1, 64)

    written = estimate_gpu_memory(model_fn, batch).explain().splitlines()[-1].removeprefix("write ")

    assert isinstance(eval(written, {"GpuMemoryPolicy": GpuMemoryPolicy}), GpuMemoryPolicy)


def test_an_estimate_says_that_the_loss_is_assumed_if_none_is_given():
    inputs, targets = torch.rand(4, 8), torch.rand(4, 2)
    assumed = estimate_gpu_memory(lambda: torch.nn.Linear(8, 2), batch=inputs)
    given = estimate_gpu_memory(lambda: torch.nn.Linear(8, 2), (inputs, targets), loss_fn=torch.nn.functional.mse_loss)

    loss = "your loss: without loss_fn, it is assumed to be the mean of the output"
    assert (loss in assumed.unknown, loss in given.unknown) == (True, False)
    assert f"- not included: {loss}" in assumed.explain()
