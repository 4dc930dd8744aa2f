"""Serve an image model on a GPU fraction, tune it on the rest of that GPU, and then serve the best model.

Without a GPU, the replica and the trials run on CPUs. The example requires ``ray[serve]`` and ``torch``.
"""

import tempfile
import threading
from pathlib import Path

import torch
from ray import serve, tune

from tune_policies import CappedPolicy, CpuPolicy, GpuPolicy, probe_cluster, run

POLICY = GpuPolicy(gpus=0.25, cpus=0.5) | CpuPolicy(cpus=1)


def build_model():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 2),
    )


def draw_images(count, seed):
    """Return noisy images of 16 x 16 pixels, and the half of each image that contains a square (0: left, 1: right)."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 16, 16, generator=generator)
    halves = torch.randint(2, (count,), generator=generator)
    for image, half in zip(images, halves.tolist(), strict=True):
        image[0, 6:10, 2 + 8 * half : 6 + 8 * half] += 2
    return images, halves


@serve.deployment
class Classifier:
    """Returns the half of each image that contains the square."""

    def __init__(self, weights):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = build_model().to(self.device)
        self.load(weights)

    def load(self, weights):
        self.model.load_state_dict(weights)

    def __call__(self, images):
        with torch.no_grad():
            return self.model(images.to(self.device)).argmax(1).tolist()


def train(config):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, halves = (each.to(device) for each in draw_images(256, seed=0))
    torch.manual_seed(0)
    model = build_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for _ in range(60):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), halves)
        loss.backward()
        optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.cpu().state_dict(), Path(folder, "weights.pt"))
        tune.report({"loss": loss.item()}, checkpoint=tune.Checkpoint.from_directory(folder))


def accuracy(handle, images, halves):
    return sum(map(int.__eq__, handle.remote(images).result(), halves.tolist())) / len(halves)


def main(storage_path=None):
    plan = POLICY.plan(probe_cluster())
    options = {"num_cpus": plan.trial.cpus, "num_gpus": plan.trial.gpus}  # the replica uses one slot of the plan
    handle = serve.run(Classifier.options(ray_actor_options=options).bind(build_model().state_dict()))
    images, halves = draw_images(100, seed=1)
    before, has_ended, answers = accuracy(handle, images, halves), threading.Event(), []

    def ask():
        while not has_ended.wait(0.1):
            answers.append(handle.remote(images).result())

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        found = run(
            train,
            CappedPolicy(POLICY, max(1, plan.max_concurrent_trials - 1)),  # the trials use the other slots
            config={"lr": tune.grid_search([1e-4, 1e-3, 1e-2])},
            metric="loss",
            mode="min",
            storage_path=storage_path,
            verbose=0,
        )
    finally:
        has_ended.set()
        asking.join()
    for trial in found.trials:
        print(f"loss {trial.last_result['loss']:.3f} in a slot of {trial.last_result['slot']}")
    with found.best_checkpoint.as_directory() as folder:
        handle.load.remote(torch.load(Path(folder, "weights.pt"))).result()
    print(f"{len(answers)} answers while the trials ran; accuracy {before:.2f} before, ", end="")
    print(f"{accuracy(handle, images, halves):.2f} with the best trial")
    serve.shutdown()


if __name__ == "__main__":
    main(str(Path("results").resolve()))
