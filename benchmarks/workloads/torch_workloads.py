"""Work in PyTorch: the product of two matrices, and steps of training.

Data and first weights are made on the CPU from a seed, so they are the same on every device. A step trains by plain
gradient descent: the moments of Adam or of momentum decay towards zero where a gradient is zero, and a CPU can be slow
with numbers so close to it, which is no property of the work.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import cycle
from typing import Any, Final, Literal

import torch

from ..measuring.frameworks import torch_device
from ..measuring.protocol import Steps
from .torch_models import MODELS, make_data

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
