"""The models that are trained in PyTorch, each with the shape of its samples, and data for them.

Without dropout, so that a seed and the data decide every loss on every device.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

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
