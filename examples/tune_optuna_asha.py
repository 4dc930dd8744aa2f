"""Tune with Optuna and ASHA on GPU fractions if there is a GPU, else on CPUs. ASHA stops bad trials early."""

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from tune_policies import CpuPolicy, GpuMemoryPolicy, run

POLICY = GpuMemoryPolicy(gpu_memory="2GiB") | CpuPolicy(cpus=1)


def train(config):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x = torch.randn(1024, 8, device=device)
    y = x.square().sum(dim=1, keepdim=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, config["width"]), torch.nn.Tanh(), torch.nn.Linear(config["width"], 1)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    for _ in range(4):
        for _ in range(20):
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tune.report({"loss": loss.item()})


def main(storage_path=None):
    return run(
        train,
        POLICY,
        config={"lr": tune.loguniform(1e-4, 1e-1), "width": tune.choice([32, 128])},
        num_samples=4,
        metric="loss",
        mode="min",
        search_alg=OptunaSearch(seed=0),
        scheduler=ASHAScheduler(max_t=4, grace_period=1, reduction_factor=2),
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().best_config)
