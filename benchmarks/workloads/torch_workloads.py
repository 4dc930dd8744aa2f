"""Workloads in PyTorch: matrix multiplication, training steps, and iterations on an array of numbers.

Data and initial weights are generated on the CPU from a seed, so they are the same on every device. Models have no
dropout, so the seed and the data determine every loss. A step uses plain gradient descent, because the moments of Adam
or momentum decay towards zero where a gradient is zero, and CPUs can be slow with such tiny numbers.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import cycle
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import ray
import torch
from torch import Tensor, nn

from tune_policies.values.errors import ProbeError

from .steps import Steps, torch_device

NUM_CLASSES: Final = 10
NUM_TOKENS: Final = 1_000
SEED: Final = 0
LEARNING_RATE: Final = 0.001
"""The learning rate. It is small, so that rounding differences between devices do not grow from step to step."""

NUM_BATCHES: Final = 8
"""The number of batches in an epoch. Every epoch uses the same batches."""

NUM_ITERATIONS: Final = 8
"""The number of iterations in an epoch of the iterative workloads."""

_ROUNDED: Final = 0.05
"""The tolerance of losses if only one of the devices rounds to 10 bits of mantissa."""

_LOSS_SCALE: Final = 128.0
"""The initial loss scale. With PyTorch's default of 65,536, float16 overflows in some batches, and PyTorch skips the
optimizer steps of these batches."""

Precision = Literal["float32", "tf32", "float16"]


class Model(NamedTuple):
    """A classifier: a function that builds the model on the CPU with PyTorch's seed, and the shape of one sample.

    Samples are normally distributed numbers, or tokens below ``NUM_TOKENS`` if ``is_text`` is set.
    """

    build: Callable[[], nn.Module]
    sample_shape: tuple[int, ...]
    num_classes: int = NUM_CLASSES
    is_text: bool = False


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, NUM_CLASSES))
    )


def _cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, NUM_CLASSES)),
    )


class _Residual(nn.Module):
    """A residual block: the sum of the body and the shortcut, followed by a ReLU."""

    def __init__(self, body: nn.Module, short: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.short = short
        self.relu = nn.ReLU()

    def forward(self, images: Tensor) -> Any:
        return self.relu(self.body(images) + self.short(images))


def _convolution(before: int, after: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)


def _basic_block(before: int, after: int, stride: int) -> nn.Module:
    body = nn.Sequential(*_convolution(before, after, 3, stride), nn.ReLU(), *_convolution(after, after, 3))
    # The shortcut must have the shape of the body's result.
    short: nn.Module = nn.Identity()
    if stride != 1 or before != after:
        short = nn.Conv2d(before, after, 1, stride, bias=False)
    return _Residual(body, short)


def _bottleneck(before: int, width: int, stride: int) -> nn.Module:
    """Return a block of 1 x 1, 3 x 3 and 1 x 1 convolutions with ``4 * width`` output channels.

    The stride applies to the 3 x 3 convolution.
    """
    after = 4 * width
    body = nn.Sequential(
        *(*_convolution(before, width, 1), nn.ReLU()),
        *(*_convolution(width, width, 3, stride), nn.ReLU()),
        *_convolution(width, after, 1),
    )
    short = nn.Identity() if before == after else nn.Sequential(*_convolution(before, after, 1, stride))
    return _Residual(body, short)


def _resnet(stem: Sequence[nn.Module], blocks: Sequence[nn.Module], width: int, num_classes: int) -> nn.Module:
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))


def _resnet18() -> nn.Module:
    """Return a residual network with the blocks and widths of ResNet-18, for images of 32 x 32 pixels."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    widths += [(256, 512, 2), (512, 512, 1)]
    stem = (nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return _resnet(stem, [_basic_block(*width) for width in widths], 512, NUM_CLASSES)


def _resnet50() -> nn.Module:
    """Return ResNet-50 v1.5, in which the stride of a block applies to its 3 x 3 convolution."""
    blocks: list[nn.Module] = []
    before = 64
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(num_blocks):
            # The pooling layer of the stem has halved the resolution already, so the first group keeps it.
            stride = 2 if index == 0 and width > 64 else 1
            blocks.append(_bottleneck(before, width, stride))
            before = 4 * width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return _resnet(stem, blocks, before, 1_000)


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 128)
        layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=256, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(128, NUM_CLASSES)

    def forward(self, tokens: Tensor) -> Any:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


MODELS: Final = {
    "mlp": Model(_mlp, (1, 28, 28)),
    "cnn": Model(_cnn, (1, 28, 28)),
    "resnet18": Model(_resnet18, (3, 32, 32)),
    "resnet50": Model(_resnet50, (3, 224, 224), num_classes=1_000),
    "transformer": Model(_Transformer, (64,), is_text=True),
}


def matmul(size: int, device: str) -> Steps:
    """Return steps that multiply two matrices with ``size`` rows and columns."""
    where = torch_device(device)
    _allow_tf32(False)
    torch.manual_seed(SEED)
    # Use positive numbers, because numbers of both signs would cancel out, and rounding differences would dominate.
    host = torch.rand(2, size, size)
    first, second = host.to(where)
    return Steps(
        with_transfers=lambda: torch.matmul(*host.to(where)).cpu()[-1, -1],
        compute=lambda: torch.matmul(first, second)[-1, -1],
        steps_per_epoch=1,
        dtype="float32",
    )


def _training(
    name: str, batch_size: int, device: str, *, num_batches: int = NUM_BATCHES, precision: Precision = "float32"
) -> Steps:
    """Return steps that train a model on batches of ``batch_size`` samples."""
    where = torch_device(device)
    _allow_tf32(precision == "tf32")
    torch.manual_seed(SEED)
    model = MODELS[name]
    shape = (num_batches, batch_size, *model.sample_shape)
    samples = torch.randint(NUM_TOKENS, shape) if model.is_text else torch.randn(shape)
    host = list(zip(samples, torch.randint(model.num_classes, shape[:2]), strict=True))
    there = [_moved(batch, where) for batch in host]
    train = _trainer(model, where, precision)
    from_host, from_device = cycle(host), cycle(there)
    tolerance = Steps._field_defaults["tolerance"] if precision == "float32" else _ROUNDED
    return Steps(
        with_transfers=lambda: train(_moved(next(from_host), where)),
        compute=lambda: train(next(from_device)),
        steps_per_epoch=num_batches,
        dtype=precision,
        samples_per_step=batch_size,
        tolerance=tolerance,
    )


def _trainer(model: Model, where: torch.device, precision: Precision) -> Any:
    """Return a function that does one training step on a batch, and returns the loss without waiting for it."""
    is_mixed = precision == "float16"
    trained = model.build().to(where)
    optimizer = torch.optim.SGD(trained.parameters(), lr=LEARNING_RATE)
    # Without mixed precision, a disabled scaler does nothing, so that one loop serves both.
    scaler = torch.amp.GradScaler(where.type, init_scale=_LOSS_SCALE, enabled=is_mixed)

    def train(batch: Sequence[Tensor]) -> Tensor:
        samples, labels = batch
        # PyTorch does not support autocast for some devices, not even a disabled context.
        context = torch.autocast(where.type, dtype=torch.float16) if is_mixed else nullcontext()
        with context:
            loss = nn.functional.cross_entropy(trained(samples), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return train


def _moved(tensors: Sequence[Tensor], where: torch.device) -> list[Tensor]:
    return [tensor.to(where) for tensor in tensors]


def _allow_tf32(allowed: bool) -> None:
    """Set whether NVIDIA GPUs may round float32 to TF32. By default, PyTorch allows this only in convolutions."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


mlp = partial(_training, "mlp")
cnn = partial(_training, "cnn")
transformer = partial(_training, "transformer")
resnet18 = partial(_training, "resnet18")
resnet50 = partial(_training, "resnet50", num_batches=2)
resnet50_tf32 = partial(resnet50, precision="tf32")
resnet50_fp16 = partial(resnet50, precision="float16")


def iterative_tasks(size: int, device: str) -> Steps:
    """Return steps that update ``size`` numbers and copy them through Ray's object store."""
    if not ray.is_initialized():  # otherwise ray.put would start Ray
        raise ProbeError(
            "iterative-tasks copies through Ray's object store, but Ray is not running. Call ray.init() first"
        )
    where = torch_device(device)
    # PyTorch warns that arrays from the object store are read-only. The iteration does not write to them.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    stored = ray.put(_first_numbers(size))

    def iterate() -> Any:
        nonlocal stored
        numbers = _iterated(torch.from_numpy(ray.get(stored)).to(where)).cpu().numpy()
        stored = ray.put(numbers)
        return numbers[0]

    # There is no `compute`, because without the copies it would be the same as `iterative_actor`.
    return Steps(iterate, steps_per_epoch=NUM_ITERATIONS, dtype="float32")


def iterative_actor(size: int, device: str) -> Steps:
    """Return steps that update ``size`` numbers on the device, without copies to or from host memory."""
    numbers = torch.from_numpy(_first_numbers(size)).to(torch_device(device))

    def iterate() -> Any:
        nonlocal numbers
        numbers = _iterated(numbers)
        return numbers[0]

    # There is no `compute`, because no data are transferred.
    return Steps(iterate, steps_per_epoch=NUM_ITERATIONS, dtype="float32")


def _first_numbers(size: int) -> Any:
    return np.random.default_rng(SEED).random(size, dtype=np.float32)


def _iterated(numbers: Tensor) -> Tensor:
    return 0.5 * numbers + 0.25 * (torch.roll(numbers, 1) + torch.roll(numbers, -1))
