"""An unchanged PyTorch sweep under one policy: ``python -m tests.on_gpu.learning_sweep POLICY RECORD``.

The record contains the duration, the lost trials, the out-of-memory errors, and for each trial the memory that the
policy observed and the peak that the driver reported for its process.
"""

import json
import os
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import ray
import torch
import typer
from ray import tune

from tune_policies import GpuPolicy, LearningPolicy, load_policy, run
from tune_policies.probe.nvml import NvmlError, read_device_use

POLICIES = {
    "whole": GpuPolicy(),
    "half": GpuPolicy(gpus=1 / 2),
    "quarter": GpuPolicy(gpus=1 / 4),
    "eighth": GpuPolicy(gpus=1 / 8),
    "sixteenth": GpuPolicy(gpus=1 / 16),
    "learning": LearningPolicy(),
}


def train(config):
    """Train a network whose memory depends on the width and the batch size."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    width, batch = config["width"], config["batch"]
    layers = [torch.nn.Linear(width, width), torch.nn.ReLU()] * 4
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    inputs, labels = torch.randn(batch, width, device=device), torch.randint(10, (batch,), device=device)
    for epoch in range(config["epochs"]):
        for _ in range(config["steps"]):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tune.report({"loss": loss.item(), "epoch": epoch, "process": os.getpid()})


@contextmanager
def driver_peaks():
    """Yield the largest memory of each process that the driver has reported, in bytes, by process ID."""
    peaks, is_over = {}, threading.Event()

    def watch():
        while not is_over.wait(0.25):
            with suppress(NvmlError):
                for device in read_device_use():
                    for process, used in device.bytes_by_process.items():
                        peaks[process] = max(peaks.get(process, 0), used or 0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        is_over.set()
        watcher.join()


def main(
    policy: Annotated[str, typer.Argument(help=f"One of {', '.join(POLICIES)}.")],
    record: Annotated[Path, typer.Argument(help="The file of the record.")],
    trials: Annotated[int, typer.Option(min=1, help="Number of trials.")] = 32,
    steps: Annotated[int, typer.Option(min=1, help="Number of steps between two results.")] = 200,
) -> None:
    """Run the sweep."""
    has_gpu = torch.cuda.is_available()
    ray.init(address="local", num_gpus=None if has_gpu else 1, include_dashboard=False)
    space = {
        "width": tune.choice([512, 1024, 2048]),
        "batch": tune.choice([1024, 4096, 16384]),
        "lr": tune.loguniform(1e-4, 1e-2),
        "epochs": 10,
        "steps": steps,
    }
    if not has_gpu:
        space |= {"width": tune.choice([16, 32]), "batch": tune.choice([4, 8])}
    with tempfile.TemporaryDirectory() as folder, driver_peaks() as peaks:
        begin_s = time.monotonic()
        analysis = run(
            train,
            POLICIES[policy],
            config=space,
            num_samples=trials,
            storage_path=folder,
            name="run",
            verbose=0,
            raise_on_failed_trial=False,
            reuse_actors=False,  # one process for each trial, so that the driver's figure belongs to the trial
        )
        seconds = time.monotonic() - begin_s
        learned = Path(folder, "run", "learned_policy.json")
        observed = {}
        if learned.exists():
            observed = {seen.trial_id: seen.used.gpu_memory_bytes for seen in load_policy(learned).observations}
    ray.shutdown()
    of_trials = [
        {
            "status": trial.status,
            "config": trial.config,
            "num_failures": trial.run_metadata.num_failures,
            "observed_bytes": observed.get(trial.trial_id),
            "driver_bytes": peaks.get(trial.last_result.get("process")),
        }
        for trial in analysis.trials
    ]
    num_lost = sum(trial["status"] != "TERMINATED" for trial in of_trials)
    record.write_text(
        json.dumps({"policy": policy, "seconds": seconds, "num_lost": num_lost, "trials": of_trials}, indent=1)
    )
    print(f"{policy}: {seconds:.1f} s, {num_lost} trials lost")


if __name__ == "__main__":
    typer.run(main)
