"""Combine policies in one run: trials on GPU fractions, and additional trials on the remaining CPUs.

Without a GPU, all trials use CPUs.
"""

import torch
from ray import tune

from tune_policies import CpuPolicy, GpuMemoryPolicy, MixedPolicy, run

POLICY = MixedPolicy(
    GpuMemoryPolicy(gpu_memory="4GiB", cpus=1, max_trials_per_gpu=2),
    CpuPolicy(cpus=1),
    speeds=(5, 1),  # GPU trials are five times as fast as CPU trials, so the last trials may wait for a GPU
)


def train(config):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x = torch.randn(256, 8, device=device)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    for _ in range(50):
        loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tune.report({"loss": loss.item(), "device": device})


def main(storage_path=None):
    return run(
        train,
        POLICY,
        config={"lr": tune.grid_search([1e-3, 3e-3, 1e-2, 3e-2])},
        metric="loss",
        mode="min",
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().dataframe()[["config/lr", "slot", "loss"]])
