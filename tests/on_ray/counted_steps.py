"""A Train run that counts its steps in checkpoints, and notes each step of each attempt in a file."""

import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import ray
import ray.train
from ray.train import Checkpoint, RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tune_policies.trainers import fit_with_oom_retry

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB."


class Note(NamedTuple):
    """A step that an attempt began, with the GPUs and the node of its worker."""

    step: int
    gpus: float
    node_id: str


def counted_steps(config, most):
    """Yield a note of each step after the checkpoint, up to step ``most``. After each step, save a checkpoint."""
    context = ray.get_runtime_context()
    checkpoint = ray.train.get_checkpoint()
    done = 0
    if checkpoint is not None:
        done = json.loads(Path(checkpoint.path, "done.json").read_text())
    for step in range(done + 1, most + 1):
        note = Note(step, context.get_assigned_resources()["GPU"], context.get_node_id())
        with Path(config["notes"]).open("a") as file:  # not printed, because Ray Train replaces print
            file.write(json.dumps(note) + "\n")
        yield note
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "done.json").write_text(json.dumps(step))
            ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))


def notes(folder):
    """Return the notes of all attempts, in order."""
    path = folder / "notes"
    if not path.exists():
        return []
    return [Note(*json.loads(line)) for line in path.read_text().splitlines()]


def fit(loop, folder, plan, *, failure_config=None, **config):
    """Run a training loop with retries after out-of-memory errors. Its config contains the path of the notes."""

    def build(plan):
        # Use Ray's trainer, because the builders of this package would import torch and limit its GPU memory.
        return DataParallelTrainer(
            loop,
            train_loop_config={"notes": str(folder / "notes"), **config},
            scaling_config=plan.scaling_config(),
            run_config=RunConfig(name="run", storage_path=str(folder), failure_config=failure_config),
        )

    return fit_with_oom_retry(build, plan)
