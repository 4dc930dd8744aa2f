"""Measure the GPU memory of each config in short trials, and run each config on a GPU fraction that fits.

Without a GPU, nothing is measured and the trials use CPUs.
"""

import torch
from ray import tune

from tune_policies import CpuPolicy, InfeasibleRequestError, run
from tune_policies.trainers import plan_by_measuring

SPACE = {"batch_size": tune.grid_search([256, 1024, 4096]), "lr": tune.loguniform(1e-4, 1e-2)}


def train(config):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for _ in range(5):
        x = torch.randn(config["batch_size"], 64, device=device)
        loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tune.report({"loss": loss.item()})


def measured_plan():
    try:
        return plan_by_measuring(train, SPACE, num_samples=1, timeout_s=20)  # one config per batch size
    except InfeasibleRequestError as error:
        print(error)
        return CpuPolicy(cpus=1)


def main(storage_path=None):
    return run(train, measured_plan(), config=SPACE, metric="loss", mode="min", storage_path=storage_path, verbose=1)


if __name__ == "__main__":
    print(main().best_config)
