"""Tune a PyTorch Train run with two workers per trial, which may share a GPU. The plan includes the workers."""

import tempfile

import ray.train.torch
import torch
from ray import tune
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

from tune_policies import CpuPolicy, GpuMemoryPolicy, as_trainable, run
from tune_policies.trainers import build_torch_trainer

POLICY = (
    GpuMemoryPolicy(gpu_memory="4GiB", num_workers=2)
    | CpuPolicy(cpus=1, num_workers=2)
    | CpuPolicy(cpus=0.5, num_workers=2)  # for a machine with a single CPU
)


def train_on_worker(config):
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = map(torch.as_tensor, train_test_split(images.astype("float32") / 16, labels, random_state=0))
    loader = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True))
    torch.manual_seed(0)
    model = ray.train.torch.prepare_model(
        torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    device = ray.train.torch.get_device()

    for epoch in range(10):
        loader.sampler.set_epoch(epoch)
        for batch, target in loader:
            loss = torch.nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(x_test.to(device)).argmax(1).cpu() == y_test).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:  # all workers have the same model
                torch.save(model.state_dict(), f"{folder}/model.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"accuracy": accuracy}, checkpoint=checkpoint)


def build_trainer(config):  # called in the trial, which starts the workers and waits for them
    return build_torch_trainer(train_on_worker, plan=POLICY, train_loop_config=config)


def main(storage_path=None):
    return run(
        as_trainable(build_trainer),
        POLICY,
        config={"lr": tune.grid_search([3e-3, 1e-2])},
        metric="accuracy",
        mode="max",
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(f"best accuracy: {main().best_result['accuracy']:.3f}")
