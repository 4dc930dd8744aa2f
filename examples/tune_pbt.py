"""Run population-based training with checkpoints, with an equal part of the cluster for each trial.

Each of the four trials has one of four GPUs, a quarter of one GPU, or a quarter of the CPUs.
"""

import tempfile
from pathlib import Path

import torch
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining

from tune_policies import EvenSplitPolicy, run

POPULATION = 4
POLICY = EvenSplitPolicy(num_trials=POPULATION, min_gpus=1 / POPULATION) | EvenSplitPolicy(num_trials=POPULATION)


def train(config):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    x = torch.randn(256, 8, device=device)
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    start = 0
    if checkpoint := tune.get_checkpoint():  # the checkpoint may be from a better trial
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), map_location=device)
        start = state["step"] + 1
        model.load_state_dict(state["model"])

    for step in range(start, 6):
        loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"step": step, "model": model.state_dict()}, Path(folder, "state.pt"))
            tune.report({"loss": loss.item(), "step": step}, checkpoint=tune.Checkpoint.from_directory(folder))


def main(storage_path=None):
    return run(
        train,
        POLICY,
        config={"lr": tune.grid_search([0.001, 0.01, 0.1, 0.2])},
        metric="loss",
        mode="min",
        scheduler=PopulationBasedTraining(
            perturbation_interval=2, hyperparam_mutations={"lr": tune.loguniform(1e-3, 0.3)}
        ),
        reuse_actors=True,  # a trial that gets another config keeps its process
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().best_config)
