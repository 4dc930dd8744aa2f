"""The trainables of the programs. Each step adds ``x`` to a total, so that lost or repeated steps can be detected."""

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune


class Steps:
    """The state of a trial: the number of finished steps, and the sum of ``x`` over these steps."""

    def __init__(self, config: dict[str, Any], folder: str | None = None) -> None:
        self.config, self.done, self.total = config, 0, 0.0
        Path(config["folder"], f"process-{os.getpid()}").touch()
        if folder is not None:
            self.done, self.total = json.loads(Path(folder, "state").read_text())

    def take(self) -> dict[str, Any]:
        """Take a step, or fail, and return the metrics."""
        time.sleep(self.config["step_s"])
        self.done += 1
        self.total += self.config["x"]
        self._fail_if_due()
        return {"steps_done": self.done, "total": self.total}

    def save(self, folder: str) -> None:
        """Write the state to a folder."""
        Path(folder, "state").write_text(json.dumps([self.done, self.total]))

    def _fail_if_due(self) -> None:
        failure = self.config["failure"]
        if failure is None or self.done != failure["at_step"] or self.config["x"] >= failure["below"]:
            return
        past = Path(self.config["folder"], f"failures-{self.config['x']}")
        if past.exists() and past.stat().st_size >= failure["times"]:
            return
        with past.open("a") as file:
            file.write(".")
        if failure["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("the trial was ordered to fail")


def train(config: dict[str, Any]) -> None:
    """Take all steps, and report each of them, with a checkpoint if ``saves`` is set."""
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        steps = Steps(config)
    else:
        with checkpoint.as_directory() as folder:
            steps = Steps(config, folder)
    while steps.done < config["num_steps"]:
        metrics = steps.take()
        if not config["saves"]:
            tune.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            steps.save(folder)
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


class Training(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """The same steps as a class that saves checkpoints."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start with no steps."""
        self._steps = Steps(config)

    def step(self) -> dict[str, Any]:
        """Take one step."""
        return {**self._steps.take(), "done": self._steps.done >= self.config["num_steps"]}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the state."""
        self._steps.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: str) -> None:
        """Load the state."""
        self._steps = Steps(self.config, checkpoint)


class ResettableTraining(Training):
    """The same class, whose processes can be reused."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start again with another config."""
        self._steps = Steps(new_config)
        return True
