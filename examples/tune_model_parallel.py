"""Split the model of each trial over two GPUs of one node, or run it on CPUs if no node has two GPUs."""

import torch
from ray import tune

from tune_policies import CpuPolicy, GpuPolicy, run

POLICY = GpuPolicy(gpus=2) | CpuPolicy(cpus=1)


class Halves(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        has_two = torch.cuda.device_count() >= 2  # a trial sees only its own GPUs
        self.devices = ("cuda:0", "cuda:1") if has_two else ("cpu", "cpu")
        self.first = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU()).to(self.devices[0])
        self.second = torch.nn.Linear(width, 1).to(self.devices[1])

    def forward(self, x):
        return self.second(self.first(x.to(self.devices[0])).to(self.devices[1]))


def train(config):
    torch.manual_seed(0)
    model = Halves(config["width"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(256, 8)
    y = x.sum(dim=1, keepdim=True).to(model.devices[1])
    for _ in range(50):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tune.report({"loss": loss.item(), "devices": " ".join(model.devices)})


def main(storage_path=None):
    return run(
        train,
        POLICY,
        config={"width": tune.grid_search([16, 64])},
        metric="loss",
        mode="min",
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(main().best_config)
