"""Small PyTorch trainings whose work is the same wherever they run, as trainables for Ray Tune.

Data and first weights come from a seed. The data lie in host memory and each batch is copied to the device, as a data
loader does.
"""

from typing import Any, Final, NamedTuple

import torch
from ray import tune

from ..workloads.torch_models import CNN, MLP, RESNET_18, TRANSFORMER, Model, make_data

_NUM_BATCHES: Final = 8
"""Batches of data, used again and again."""


class Workload(NamedTuple):
    """One kind of training.

    Attributes:
        model: What is trained.
        batch_size: Samples in a step.
        num_steps: Steps of one trial, so that it lasts some seconds on a GPU.
    """

    model: Model
    batch_size: int
    num_steps: int


WORKLOADS: Final = {
    "mlp": Workload(MLP, 64, 20_000),
    "cnn": Workload(CNN, 64, 15_000),
    "resnet18": Workload(RESNET_18, 64, 1_000),
    "transformer": Workload(TRANSFORMER, 32, 4_000),
}


def train_workload(config: dict[str, Any]) -> None:
    """Train the workload that ``config`` names, on the GPU if the process sees one, and report the mean loss.

    Args:
        config: ``workload``: its name; ``num_steps``: steps in all; ``num_reports``: reports in all; ``seed``.
    """
    workload = WORKLOADS[config["workload"]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(config["seed"])
    samples, labels = make_data(workload.model, _NUM_BATCHES, workload.batch_size)
    model = workload.model.build().to(device)
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
