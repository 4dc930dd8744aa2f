"""Retry a trial after a GPU out-of-memory error, from its last checkpoint and with a larger GPU fraction.

The large batch needs more memory than the GPU fraction of the policy provides. On CPUs, no trial runs out of memory.
"""

import tempfile
from pathlib import Path

import torch
from ray import tune

from tune_policies import CpuPolicy, GpuMemoryPolicy, OomRetryScheduler, run

POLICY = GpuMemoryPolicy(gpu_memory="1.25GiB") | CpuPolicy(cpus=1)


def train(config):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1)).to(device)
    start = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            start, weights = torch.load(Path(folder, "state.pt"), map_location=device)
        model.load_state_dict(weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    for step in range(start, 3):
        batch_size = config["batch_size"] if step else 100  # the first batch is small
        x = torch.randn(batch_size, 64, device=device)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save((step + 1, model.state_dict()), Path(folder, "state.pt"))
            metrics = {"loss": loss.item(), "started_at": start}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def main(storage_path=None):
    return run(
        train,
        POLICY,
        config={"batch_size": tune.grid_search([100, 60_000])},
        metric="loss",
        mode="min",
        scheduler=OomRetryScheduler(),
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().dataframe()[["config/batch_size", "started_at", "slot", "loss"]])
