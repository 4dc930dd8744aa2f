"""Tune a PyTorch classifier of handwritten digits on fractions of a GPU if there is one, else on CPUs."""

import torch
from ray import tune
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tune_policies import CpuPolicy, GpuMemoryPolicy, run

POLICY = GpuMemoryPolicy(gpu_memory="4GiB") | CpuPolicy(cpus=1)


def train_digits(config):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = (
        torch.as_tensor(array, device=device)
        for array in train_test_split(images.astype("float32") / 16, labels, random_state=0)
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])

    for _ in range(20):
        for batch in torch.randperm(len(x), device=device).split(64):
            loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
        tune.report({"accuracy": accuracy})


def main(storage_path=None):
    return run(
        train_digits,
        POLICY,
        config={"lr": tune.grid_search([1e-3, 1e-2]), "width": tune.grid_search([32, 128])},
        metric="accuracy",
        mode="max",
        storage_path=storage_path,
        verbose=1,
    )


if __name__ == "__main__":
    print(f"best accuracy: {main().best_result['accuracy']:.3f}")
