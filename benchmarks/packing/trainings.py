"""Small PyTorch trainings whose work is the same wherever they run, as trainables for Ray Tune.

Data and first weights come from a seed. The data lie in host memory and each batch is copied to the device, as a data
loader does.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ray import tune


class Workload(NamedTuple):
    """One kind of training.

    Attributes:
        describe: The model and its sizes, for a reader.
        build_model: Makes the model.
        sample_shape: The shape of one sample; whole numbers below 1,000 where ``is_text``.
        batch_size: Samples in a step.
        num_steps: Steps of one trial, so that it lasts some seconds on a GPU.
        is_text: Whether samples are token numbers.
    """

    describe: str
    build_model: Callable[[], Any]
    sample_shape: tuple[int, ...]
    batch_size: int
    num_steps: int
    is_text: bool = False


NUM_CLASSES: Final = 10
NUM_TOKENS: Final = 1_000
_NUM_BATCHES: Final = 8
"""Batches of data, used again and again."""


def _mlp() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, NUM_CLASSES))
    )


def _cnn() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, NUM_CLASSES)),
    )


def _resnet18() -> Any:
    """Return a residual network with the blocks and widths of ResNet-18, for images of 32 x 32."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
                *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
            )
            is_same = stride == 1 and before == after
            self.short = nn.Identity() if is_same else nn.Conv2d(before, after, 1, stride, bias=False)
            self.relu = nn.ReLU()

        def forward(self, images: Any) -> Any:
            return self.relu(self.body(images) + self.short(images))

    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)]
    widths += [(256, 512, 2), (512, 512, 1)]
    stem = (nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, NUM_CLASSES))
    return nn.Sequential(*stem, *(Block(*width) for width in widths), *head)


def _transformer() -> Any:
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(NUM_TOKENS, 128)
            layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=256, batch_first=True, dropout=0.0)
            self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
            self.head = nn.Linear(128, NUM_CLASSES)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.encoder(self.embedding(tokens)).mean(1))

    return Classifier()


WORKLOADS: Final = {
    "mlp": Workload("MLP 784-256-256-10, batches of 64 of 28 x 28", _mlp, (1, 28, 28), 64, 20_000),
    "cnn": Workload("CNN of 2 convolutions, batches of 64 of 28 x 28", _cnn, (1, 28, 28), 64, 15_000),
    "resnet18": Workload("ResNet-18-like CNN, batches of 64 of 3 x 32 x 32", _resnet18, (3, 32, 32), 64, 1_000),
    "transformer": Workload(
        "transformer of 2 layers, width 128, batches of 32 of 64 tokens", _transformer, (64,), 32, 4_000, is_text=True
    ),
}


def train_workload(config: dict[str, Any]) -> None:
    """Train the workload that ``config`` names, on the GPU if the process sees one, and report the mean loss.

    Args:
        config: ``workload``: its name; ``num_steps``: steps in all; ``num_reports``: reports in all; ``seed``.
    """
    import torch

    workload = WORKLOADS[config["workload"]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(config["seed"])
    samples, labels = make_data(workload)
    model = workload.build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    chunk = -(-config["num_steps"] // config["num_reports"])
    total = torch.zeros((), device=device)
    for step in range(config["num_steps"]):
        which = step % _NUM_BATCHES
        loss = torch.nn.functional.cross_entropy(model(samples[which].to(device)), labels[which].to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.detach()
        done = step + 1
        if done % chunk == 0 or done == config["num_steps"]:
            # Reading the loss waits for the device, so a report is a point in time at which the work is done.
            tune.report({"loss": total.item() / done, "steps": done})


def make_data(workload: Workload) -> tuple[Any, Any]:
    """Return samples ``(batches, batch_size, *sample_shape)`` and labels ``(batches, batch_size)`` in host memory."""
    import torch

    shape = (_NUM_BATCHES, workload.batch_size, *workload.sample_shape)
    samples = torch.randint(NUM_TOKENS, shape) if workload.is_text else torch.randn(shape)
    return samples, torch.randint(NUM_CLASSES, shape[:2])
