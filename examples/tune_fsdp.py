"""Shard a model with FSDP over the workers of each trial, on two GPUs if available, else on one GPU, else on CPUs.

The example requires PyTorch 2.6 or later.
"""

import ray.train
import ray.train.torch
import torch
from ray import tune
from torch.distributed.fsdp import fully_shard

from tune_policies import CpuPolicy, GpuPolicy, as_trainable, run
from tune_policies.trainers import build_torch_trainer

POLICY = GpuPolicy(num_workers=2) | GpuPolicy(num_workers=1) | CpuPolicy(cpus=1, num_workers=2)


def train_on_worker(config):
    device = ray.train.torch.get_device()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 1)
    )
    mesh = torch.distributed.init_device_mesh(device.type, (ray.train.get_context().get_world_size(),))
    model = model.to(device)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    torch.manual_seed(ray.train.get_context().get_world_rank())  # each worker has its own rows
    x = torch.randn(128, 8, device=device)
    for _ in range(3):
        for _ in range(10):
            loss = torch.nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        held = sum(parameter.to_local().numel() for parameter in model.parameters())
        ray.train.report({"loss": loss.item(), "parameters_held": held})


def build_trainer(config):
    return build_torch_trainer(train_on_worker, plan=POLICY, train_loop_config=config)


def main(storage_path=None):
    return run(
        as_trainable(build_trainer),
        POLICY,
        config={"width": tune.grid_search([16, 64])},
        metric="loss",
        mode="min",
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().best_config)
