"""Each advice in a message about measured, estimated or limited GPU memory works as it is written."""

import os
import tempfile
from unittest import mock

import torch
from ray import tune
from torch import nn

from tests.advice import SHARED, AdviceTable, Row, named
from tests.clusters import GIB
from tune_policies.trainers import GpuMemoryEstimate, GpuMemoryLimit, Overheads, estimate_gpu_memory, measure_gpu_memory
from tune_policies.trainers.gpu_memory.framework_overhead import save_overheads
from tune_policies.trainers.gpu_memory.framework_settings import jax_variables, why_jax_is_unlimited
from tune_policies.trainers.profiling.configs_to_measure import configs_to_measure
from tune_policies.trainers.profiling.measure import check_trainable
from tune_policies.trainers.profiling.measure_overhead import places_of_models

MODEL = nn.Linear(8, 1)
INPUT = torch.zeros(4, 8)
TARGET = torch.zeros(4, 1)


class Trial(tune.Trainable):
    """A trainable, whose constructor needs no arguments."""


class OwnLoss(nn.MSELoss):
    """A loss that is not in ``torch.nn``, and that needs an argument."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight


class OnGpu(nn.Linear):
    """A model that requires a GPU."""

    def forward(self, x):
        return super().forward(x + torch.zeros(8, device="cuda"))


class Rprop(torch.optim.Rprop):
    """An optimizer with the name of one in ``torch.optim``."""


def saved_in(folder):
    """Save measured overheads in a folder."""
    with mock.patch.dict(os.environ, TUNE_POLICIES_CACHE=folder):
        save_overheads(Overheads())


def train_fn(config):
    """Train."""


def build_model(config):
    return MODEL


def estimate_row(wrong, form, right):
    """Return a row with wrong arguments of an estimate, the form in the message, and arguments of this form."""
    return Row(f"estimate_gpu_memory({wrong})", form, f"estimate_gpu_memory({right})")


ROWS = [
    Row("places_of_models(CPUS.nodes)", "Add a node with a GPU and its driver.", "places_of_models(ONE_GPU.nodes)"),
    Row(
        "jax_variables(0.5, {'XLA_CLIENT_MEM_FRACTION': '0.5', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.5'})",
        "Unset XLA_PYTHON_CLIENT_MEM_FRACTION",
        "jax_variables(0.5, {'XLA_CLIENT_MEM_FRACTION': '0.5'})",
    ),
    Row(
        "why_jax_is_unlimited({'XLA_PYTHON_CLIENT_ALLOCATOR': 'platform'}, None)",
        "Unset XLA_PYTHON_CLIENT_ALLOCATOR",
        "why_jax_is_unlimited({}, None)",
    ),
    Row(
        "why_jax_is_unlimited({'TF_FORCE_UNIFIED_MEMORY': '1'}, None)",
        "Unset TF_FORCE_UNIFIED_MEMORY",
        "why_jax_is_unlimited({}, None)",
    ),
    Row("why_jax_is_unlimited({}, 'allocator:platform')", "Remove this option", "why_jax_is_unlimited({}, '')"),
    Row(
        "GpuMemoryLimit(GIB // 2).torch_fraction(16 * GIB)",
        "Plan fewer trials per GPU",
        "GpuMemoryLimit(8 * GIB).torch_fraction(16 * GIB)",
    ),
    Row(
        "configs_to_measure([], 1, 0)",
        "Pass at least one config, or a search space",
        "configs_to_measure([{'a': 1}], 1, 0), configs_to_measure({'a': tune.choice([1])}, 1, 0)",
    ),
    Row(
        "configs_to_measure([{'a': tune.choice([1])}], 1, 0)",
        "Use values, or pass one search space as configs",
        "configs_to_measure([{'a': 1}], 1, 0), configs_to_measure({'a': tune.choice([1])}, 1, 0)",
    ),
    Row(
        "measure_gpu_memory(print, [{}], capacity=CPUS)",
        "estimate_gpu_memory(model_fn, batch)",
        "__import__('tune_policies.trainers').trainers.estimate_gpu_memory",
    ),
    Row("saved_in('/dev/null/cache')", "Set TUNE_POLICIES_CACHE to another folder", "saved_in(tempfile.mkdtemp())"),
    Row(
        "measure_gpu_memory(train_fn)",
        'measure_gpu_memory(train_fn, [{"batch_size": 32}, {"batch_size": 256}])',
        "configs_to_measure([{'batch_size': 32}, {'batch_size': 256}], 8, 0)",
    ),
    Row(
        "check_trainable(MODEL)",
        "Pass a function that trains the model, or write estimate_gpu_memory(lambda: model, batch)",
        "check_trainable(train_fn), estimate_gpu_memory(lambda: MODEL, INPUT)",
    ),
    estimate_row(
        "train_fn",
        "train_fn(config). Write estimate_gpu_memory(lambda: build_model(config), batch)",
        "lambda: build_model({}), INPUT",
    ),
    estimate_row(
        "Trial, {}",
        "the class Trial. Write estimate_gpu_memory(lambda: build_model(config), batch)",
        "lambda: build_model({}), INPUT",
    ),
    estimate_row("MODEL, INPUT", "Write estimate_gpu_memory(lambda: model, batch)", "lambda: MODEL, INPUT"),
    estimate_row(
        "nn.Linear, INPUT", "Write estimate_gpu_memory(lambda: Linear(…), batch)", "lambda: nn.Linear(8, 1), INPUT"
    ),
    estimate_row(
        "lambda: ON_GPU, (4, 8)",
        '. The estimate needs no GPU. Remove .cuda(), .to("cuda") and device="cuda" from the model',
        "lambda: MODEL, (4, 8)",
    ),
    estimate_row(
        "lambda: MODEL, (4, 8), lambda parameters: torch.optim.Adam(parameters, capturable=True)",
        ". The estimate needs no GPU, but this option does. Omit capturable=True in optimizer",
        "lambda: MODEL, (4, 8), lambda parameters: torch.optim.Adam(parameters)",
    ),
    estimate_row(
        "lambda: TOKENS, (4, 8)",
        ". It requires whole numbers. Write batch=torch.zeros(4, 8, dtype=torch.long)",
        "lambda: TOKENS, batch=torch.zeros(4, 8, dtype=torch.long)",
    ),
    Row(
        "EXPLAIN(accelerator_type='L4')",
        "Use a smaller batch, or a GPU with more memory, such as ",
        "EXPLAIN(accelerator_type='H100')",
    ),
    Row(
        "EXPLAIN(CPUS)",
        "the cluster has no GPU. Add a GPU with at least ",
        "EXPLAIN(ClusterCapacity(nodes=[TYPED.nodes[0].model_copy(update={'accelerator_type': 'H100'})]))",
    ),
    Row(
        "EXPLAIN(accelerator_type='RTX4090')",
        "; did you mean 'GeForce-RTX-4090'?",
        "EXPLAIN(accelerator_type='GeForce-RTX-4090')",
    ),
    Row(
        "EXPLAIN(accelerator_type='RTX4090')",
        '? Pass the memory that the driver reports, as in explain(accelerator_type="RTX4090", gpu_memory="24GiB")',
        "EXPLAIN(accelerator_type='RTX4090', gpu_memory='24GiB')",
    ),
    Row(
        "EXPLAIN(UNREAD)",
        '. Pass the memory that the driver reports, as in explain(gpu_memory="24GiB")',
        "EXPLAIN(UNREAD, gpu_memory='24GiB')",
    ),
    estimate_row("lambda: MODEL", "estimate_gpu_memory(model_fn, batch=(32, 100))", "lambda: MODEL, batch=(32, 8)"),
    estimate_row("lambda: MODEL, 64", "such as batch=(64, 100)", "lambda: MODEL, batch=(64, 8)"),
    estimate_row("lambda: MODEL, 0.5", "such as batch=(32, 100)", "lambda: MODEL, batch=(32, 8)"),
    estimate_row(
        "lambda: MODEL, LOADER, loss_fn=nn.MSELoss()",
        "Write batch=next(iter(loader)), and pass loss_fn",
        "lambda: MODEL, batch=next(iter(LOADER)), loss_fn=nn.MSELoss()",
    ),
    estimate_row(
        "lambda: MODEL, INPUT, optimizer='adamw'",
        "Write optimizer=torch.optim.AdamW",
        "lambda: MODEL, INPUT, optimizer=torch.optim.AdamW",
    ),
    estimate_row(
        "lambda: MODEL, INPUT, optimizer=torch.optim.SGD(MODEL.parameters(), lr=0.5, momentum=0.9)",
        "Write optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9)",
        "lambda: MODEL, INPUT, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9)",
    ),
    estimate_row(
        "lambda: MODEL, INPUT, optimizer=Rprop(MODEL.parameters(), lr=0.5)",
        "Write optimizer=lambda parameters: Rprop(parameters, lr=0.5)",
        "lambda: MODEL, INPUT, optimizer=lambda parameters: Rprop(parameters, lr=0.5)",
    ),
    estimate_row(
        "lambda: MODEL, INPUT, optimizer=lambda: None",
        "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.001)",
        "lambda: MODEL, INPUT, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.001)",
    ),
    estimate_row(
        "lambda: MODEL, INPUT, optimizer=lambda parameters: None",
        "such as lambda parameters: torch.optim.AdamW(parameters, lr=0.001)",
        "lambda: MODEL, INPUT, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.001)",
    ),
    estimate_row(
        "lambda: MODEL, (INPUT, TARGET), loss_fn='mse'",
        "Write loss_fn=torch.nn.functional.mse_loss",
        "lambda: MODEL, (INPUT, TARGET), loss_fn=torch.nn.functional.mse_loss",
    ),
    estimate_row(
        "lambda: MODEL, (INPUT, TARGET), loss_fn='triplet_margin'",
        "Write loss_fn=torch.nn.functional.cross_entropy",
        "lambda: MODEL, (INPUT, TARGET), loss_fn=torch.nn.functional.cross_entropy",
    ),
    estimate_row(
        "lambda: MODEL, (INPUT, TARGET), loss_fn=nn.MSELoss",
        "Write loss_fn=torch.nn.MSELoss()",
        "lambda: MODEL, (INPUT, TARGET), loss_fn=torch.nn.MSELoss()",
    ),
    estimate_row(
        "lambda: MODEL, (INPUT, TARGET), loss_fn=OwnLoss",
        "Write loss_fn=OwnLoss(…)",
        "lambda: MODEL, (INPUT, TARGET), loss_fn=OwnLoss(2)",
    ),
    estimate_row(
        "lambda: MODEL, (INPUT, TARGET), loss_fn=lambda output: output.mean()",
        "Write loss_fn=torch.nn.functional.cross_entropy",
        "lambda: MODEL, (INPUT, TARGET), loss_fn=torch.nn.functional.cross_entropy",
    ),
]

NAMES = {
    **SHARED,
    **named(GpuMemoryLimit, OwnLoss, Rprop, Trial, build_model, check_trainable, configs_to_measure),
    **named(estimate_gpu_memory, jax_variables, measure_gpu_memory, places_of_models, saved_in, train_fn),
    **named(why_jax_is_unlimited),
    "EXPLAIN": GpuMemoryEstimate(
        parameters_bytes=44 * GIB, gradients_bytes=0, optimizer_bytes=0, activations_bytes=0, peak_bytes=44 * GIB
    ).explain,
    "GIB": GIB,
    "INPUT": INPUT,
    "LOADER": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(INPUT, TARGET), batch_size=4),
    "MODEL": MODEL,
    "ON_GPU": OnGpu(8, 1),
    "TARGET": TARGET,
    "TOKENS": nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 1)),
    "nn": nn,
    "tempfile": tempfile,
    "torch": torch,
}

ELSEWHERE = {
    **dict.fromkeys(
        (
            "Install nvidia-ml-py",
            "the estimate requires PyTorch",
            "Install PyTorch 2.5 or later",
            ". Install a build of … for the …",
        ),
        "a package that is missing",
    ),
    **dict.fromkeys(
        (
            "could be measured within … s. Wait until",
            "Measure again while no other process uses the GPU",
            "Omit gpus and num_workers in the policy",
            "the trial did not start within",
            "no MPS daemon responds",
            "Measure again with calibrate_gpu_overhead()",
        ),
        "a GPU: tests/on_gpu",
    ),
    **dict.fromkeys(
        (
            "Pass on_unenforced_limit",
            "Measure it again",
            "does not support a limit. Use the native allocator",
            "Unset TF_GPU_ALLOCATOR",
            "Set TF_FORCE_GPU_ALLOW_GROWTH=true instead",
            "cupy.cuda.set_allocator(",
            "CuPy cannot parse",
        ),
        "frameworks on a GPU: tests/unit/runner/test_framework_limiters.py and tests/on_gpu/test_limits.py",
    ),
    "Set HOME or TUNE_POLICIES_CACHE": "a user without a home: tests/unit/runner/test_overheads.py",
    "Use a smaller batch, or divide the model among several GPUs": "several GPUs: examples/tune_fsdp.py",
    'write GpuMemoryPolicy(gpu_memory="…")': "an estimate: tests/package/profiling/test_estimate.py",
}
"""Messages with an advice that is not in the table, and what following the advice requires."""

PARTS = ("trainers/profiling", "trainers/gpu_memory")

TABLE = AdviceTable(parts=PARTS, rows=ROWS, elsewhere=ELSEWHERE, names=NAMES)
