"""Small PyTorch trainings whose work is the same wherever they run, as trainables for Ray Tune.

Data and first weights come from a seed. The data lie in host memory and each batch is copied to the device, as a data
loader does.
"""

from typing import Any, Final, NamedTuple

from ray import tune

_NUM_BATCHES: Final = 8
"""Batches of data, used again and again."""


class Workload(NamedTuple):
    """One kind of training, of the model of the same name.

    Attributes:
        batch_size: Samples in a step.
        num_steps: Steps of one trial, so that it lasts some seconds on a GPU.
    """

    batch_size: int
    num_steps: int


WORKLOADS: Final = {
    "mlp": Workload(64, 20_000),
    "cnn": Workload(64, 15_000),
    "resnet18": Workload(64, 1_000),
    "transformer": Workload(32, 4_000),
}


def train_workload(config: dict[str, Any]) -> None:
    """Train the workload that ``config`` names, on the GPU if the process sees one, and report the mean loss.

    Args:
        config: ``workload``: its name; ``num_steps``: steps in all; ``num_reports``: reports in all; ``seed``.
    """
    # Here and not above, since this module is imported before the trial's process is set up.
    import torch

    from ..workloads.torch_models import MODELS, make_data

    workload, model = WORKLOADS[config["workload"]], MODELS[config["workload"]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(config["seed"])
    samples, labels = make_data(model, _NUM_BATCHES, workload.batch_size)
    trained = model.build().to(device)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
    chunk = -(-config["num_steps"] // config["num_reports"])
    total = torch.zeros((), device=device)
    for step in range(config["num_steps"]):
        which = step % _NUM_BATCHES
        loss = torch.nn.functional.cross_entropy(trained(samples[which].to(device)), labels[which].to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.detach()
        done = step + 1
        if done % chunk == 0 or done == config["num_steps"]:
            # Reading the loss waits for the device, so a report is a point in time at which the work is done.
            tune.report({"loss": total.item() / done, "steps": done})
