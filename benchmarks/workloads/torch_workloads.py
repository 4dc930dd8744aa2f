"""Work in PyTorch: the product of two matrices, and steps of training.

Data and first weights are made on the CPU from a seed, so they are the same on every device. A step trains by plain
gradient descent: the moments of Adam or of momentum decay towards zero where a gradient is zero, and a CPU can be slow
with numbers so close to it, which is no property of the work.

The models have no dropout, so a seed and the data decide every loss on every device.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
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


class Model(NamedTuple):
    """A classifier, and what it takes.

    Attributes:
        build: Makes it, on the CPU, from torch's seed.
        sample_shape: The shape of one sample; whole numbers below 1,000 where ``is_text``.
        num_classes: How many classes it tells apart.
        is_text: Whether samples are token numbers.
    """

    build: Callable[[], nn.Module]
    sample_shape: tuple[int, ...]
    num_classes: int = NUM_CLASSES
    is_text: bool = False


def make_data(model: Model, num_batches: int, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return samples ``(batches, batch_size, *sample_shape)`` and labels ``(batches, batch_size)`` in host memory."""
    shape = (num_batches, batch_size, *model.sample_shape)
    samples = torch.randint(NUM_TOKENS, shape) if model.is_text else torch.randn(shape)
    return samples, torch.randint(model.num_classes, shape[:2])


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
    """Some layers beside a short cut, added up."""

    def __init__(self, body: nn.Module, short: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.short = short
        self.relu = nn.ReLU()

    def forward(self, images: Tensor) -> Any:
        return self.relu(self.body(images) + self.short(images))


def _basic_block(before: int, after: int, stride: int) -> nn.Module:
    body = nn.Sequential(
        *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
        *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
    )
    is_same = stride == 1 and before == after
    return _Residual(body, nn.Identity() if is_same else nn.Conv2d(before, after, 1, stride, bias=False))


def _resnet18() -> nn.Module:
    """Return a residual network with the blocks and widths of ResNet-18, for images of 32 x 32."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    widths += [(256, 512, 2), (512, 512, 1)]
    stem = (nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, NUM_CLASSES))
    return nn.Sequential(*stem, *(_basic_block(*width) for width in widths), *head)


def _bottleneck(before: int, width: int, stride: int) -> nn.Module:
    """Return a block of 1 x 1, 3 x 3 and 1 x 1 that is four times as wide at its end, its stride in the middle."""
    after = 4 * width
    body = nn.Sequential(
        *(nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)),
    )
    if before == after:
        return _Residual(body, nn.Identity())
    return _Residual(body, nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)))


def _resnet50() -> nn.Module:
    """Return ResNet-50 as it is mostly measured, with the stride of a block in its 3 x 3 convolution (version 1.5)."""
    blocks: list[nn.Module] = []
    before = 64
    for width, num_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(num_blocks):
            blocks.append(_bottleneck(before, width, 2 if index == 0 and width > 64 else 1))
            before = 4 * width
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1_000))
    return nn.Sequential(*stem, *blocks, *head)


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


SEED: Final = 0
LEARNING_RATE: Final = 0.001
"""Small, so that what devices round differently does not grow from step to step."""

NUM_BATCHES: Final = 8
"""An epoch goes through so many batches, and the next through the same."""

_ROUNDED: Final = 0.05
"""By how much losses may differ between devices where one rounds to 10 bits of mantissa and another does not."""

_LOSS_SCALE: Final = 128.0
"""To begin with. From PyTorch's own, 65,536, float16 overflows in some batches, whose steps are then left out."""

Precision = Literal["float32", "tf32", "float16"]


def matmul(size: int, device: str) -> Steps:
    """Multiply two matrices of ``size`` rows and columns, ``size`` ** 3 multiplications; the last element compares."""
    where = torch_device(device)
    _allow_tf32(False)
    torch.manual_seed(SEED)
    # Positive numbers: their products add up to a number that devices agree on, where signs would cancel out.
    host = torch.rand(2, size, size)
    first, second = host.to(where)
    return Steps(
        # An epoch means nothing here: it is one product.
        with_transfers=lambda: torch.matmul(*host.to(where)).cpu()[-1, -1],
        compute=lambda: torch.matmul(first, second)[-1, -1],
        steps_per_epoch=1,
        dtype="float32",
    )


def mlp(size: int, device: str) -> Steps:
    """Train the MLP on batches of ``size`` images of 28 x 28."""
    return _training("mlp", size, device)


def cnn(size: int, device: str) -> Steps:
    """Train the CNN on batches of ``size`` images of 28 x 28."""
    return _training("cnn", size, device)


def transformer(size: int, device: str) -> Steps:
    """Train the transformer on batches of ``size`` texts of 64 tokens."""
    return _training("transformer", size, device)


def resnet18(size: int, device: str) -> Steps:
    """Train the residual network on batches of ``size`` images of 3 x 32 x 32."""
    return _training("resnet18", size, device)


def resnet50(size: int, device: str) -> Steps:
    """Train ResNet-50 on batches of ``size`` images of 3 x 224 x 224, in float32 and nothing less."""
    return _training("resnet50", size, device, num_batches=2)


def resnet50_tf32(size: int, device: str) -> Steps:
    """The same, where a GPU may round to TF32, as PyTorch lets it do in convolutions unless it is told not to."""
    return _training("resnet50", size, device, num_batches=2, precision="tf32")


def resnet50_fp16(size: int, device: str) -> Steps:
    """The same, in PyTorch's mixed precision with float16."""
    return _training("resnet50", size, device, num_batches=2, precision="float16")


def _training(
    model: str, batch_size: int, device: str, *, num_batches: int = NUM_BATCHES, precision: Precision = "float32"
) -> Steps:
    where = torch_device(device)
    _allow_tf32(precision == "tf32")
    torch.manual_seed(SEED)
    host = list(zip(*make_data(MODELS[model], num_batches, batch_size), strict=True))
    there = [_moved(batch, where) for batch in host]
    train = _trainer(model, where, precision)
    from_host, from_device = cycle(host), cycle(there)
    return Steps(
        with_transfers=lambda: train(_moved(next(from_host), where)),
        compute=lambda: train(next(from_device)),
        steps_per_epoch=num_batches,
        dtype=precision,
        samples_per_step=batch_size,
        tolerance=Steps._field_defaults["tolerance"] if precision == "float32" else _ROUNDED,
    )


def _trainer(model: str, where: torch.device, precision: Precision) -> Any:
    """Return a function that trains one step on a batch, and returns its loss without waiting for it."""
    is_mixed = precision == "float16"
    trained = MODELS[model].build().to(where)
    optimizer = torch.optim.SGD(trained.parameters(), lr=LEARNING_RATE)
    # Where it is not enabled it passes all on.
    scaler = torch.amp.GradScaler(where.type, init_scale=_LOSS_SCALE, enabled=is_mixed)

    def train(batch: Sequence[torch.Tensor]) -> torch.Tensor:
        samples, labels = batch
        context: AbstractContextManager[Any] = (
            torch.autocast(where.type, dtype=torch.float16) if is_mixed else nullcontext()
        )
        with context:
            loss = torch.nn.functional.cross_entropy(trained(samples), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return train


def _moved(tensors: Sequence[torch.Tensor], where: torch.device) -> list[torch.Tensor]:
    """Return the tensors on the device; those that are there already as they are."""
    return [tensor.to(where) for tensor in tensors]


def _allow_tf32(allowed: bool) -> None:
    """Say whether float32 may be rounded to TF32 on NVIDIA's GPUs; by default PyTorch does so in convolutions only."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


NUM_ITERATIONS: Final = 8
"""Of an epoch."""


def iterative_tasks(size: int, device: str) -> Steps:
    """Iterate on ``size`` numbers that go through Ray's object store each time; the first of them compares."""
    if not ray.is_initialized():  # or the first put would start one
        raise ProbeError(
            "iterative-tasks copies through Ray's object store, and no Ray runs: call ray.init() before it"
        )
    where = torch_device(device)
    # What comes from the store is read-only, and torch says so; it is only read.
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    stored = ray.put(_first_numbers(size))

    def iterate() -> Any:
        nonlocal stored
        numbers = _iterated(torch.from_numpy(ray.get(stored)).to(where)).cpu().numpy()
        stored = ray.put(numbers)
        return numbers[0]

    # The copies are what such a task does: a time without them would be the actor's.
    return Steps(iterate, steps_per_epoch=NUM_ITERATIONS, dtype="float32")


def iterative_actor(size: int, device: str) -> Steps:
    """Iterate on ``size`` numbers that stay on the device; the first of them compares."""
    numbers = torch.from_numpy(_first_numbers(size)).to(torch_device(device))

    def iterate() -> Any:
        nonlocal numbers
        numbers = _iterated(numbers)
        return numbers[0]

    # Nothing is moved, so both times of the other workloads would be the same here.
    return Steps(iterate, steps_per_epoch=NUM_ITERATIONS, dtype="float32")


def _first_numbers(size: int) -> Any:
    return np.random.default_rng(SEED).random(size, dtype=np.float32)


def _iterated(numbers: torch.Tensor) -> torch.Tensor:
    return 0.5 * numbers + 0.25 * (torch.roll(numbers, 1) + torch.roll(numbers, -1))
