"""What a trial of the benchmark of throughput does: trainings whose work is the same wherever they run.

Four small ones in PyTorch come with it: data and first weights come from a seed, the data lie in host memory and each
batch is copied to the device, as a data loader does. Any workload of ``run`` does its steps as well, a user's own too.
"""

import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import ray
from ray import tune

from tune_policies.errors import InvalidResourcesError
from tune_policies.values import suggest

from ..measuring.steps_checks import checked_loss, checked_steps
from ..measuring.timing_core import wait_for_devices
from ..workloads.registry import BUILT_IN, check_needs, find_workload, load_workload

_NUM_BATCHES: Final = 8
"""Batches of data, used again and again."""


class Training(NamedTuple):
    """What all trials of a kind do.

    Attributes:
        workload: Its name, or ``module:function``.
        num_steps: Steps of a trial.
        size: Of a workload of ``run``; ``None``: it is one of the four that come with this benchmark.
    """

    workload: str
    num_steps: int
    size: int | None = None

    @property
    def name(self) -> str:
        """By which its runs are told from others."""
        return self.workload if self.size is None else f"{self.workload}[{self.size}]"


class _Own(NamedTuple):
    """One of the four, of the model of the same name.

    Attributes:
        batch_size: Samples in a step.
        num_steps: Steps of one trial, so that it lasts some seconds on a GPU.
    """

    batch_size: int
    num_steps: int


_OWN: Final = {
    "mlp": _Own(64, 20_000),
    "cnn": _Own(64, 15_000),
    "resnet18": _Own(64, 1_000),
    "transformer": _Own(32, 4_000),
}


def find_training(workload: str, size: int | None, num_steps: int | None) -> Training:
    """Return what a trial is to do.

    Args:
        workload: One of the four; with a size, one of ``run``, or ``module:function``.
        size: Of a workload of ``run``.
        num_steps: Steps of a trial; those of the four have theirs.

    Raises:
        InvalidResourcesError: There is no such workload, or its size or number of steps is missing.
    """
    if size is None and workload in _OWN:
        return Training(workload, num_steps or _OWN[workload].num_steps)
    if ":" not in workload:
        if workload not in BUILT_IN:
            known = ", ".join(dict.fromkeys([*_OWN, *BUILT_IN]))
            raise InvalidResourcesError(
                f"unknown workload {workload!r}{suggest(workload, [*_OWN, *BUILT_IN])} (known: {known}; one of your"
                " own is named module:function)"
            )
        check_needs(find_workload(workload))
    if size is None or num_steps is None:
        missing = " and ".join(name for name, given in (("--size", size), ("--steps", num_steps)) if given is None)
        raise InvalidResourcesError(
            f"{workload}: name {missing}; a trial should last some seconds, or its start is most of it"
        )
    return Training(workload, num_steps, size)


def default_trainings() -> list[Training]:
    """Return the four that come with this benchmark."""
    return [Training(name, own.num_steps) for name, own in _OWN.items()]


def config_of(training: Training, *, work: float, num_reports: int, seed: Any) -> dict[str, Any]:
    """Return the config of a trial that does this share of the steps."""
    return {
        "workload": training.workload,
        "size": training.size,
        "num_steps": max(num_reports, round(training.num_steps * work)),
        "num_reports": num_reports,
        "seed": seed,
        "folder": str(Path.cwd()),
    }


def train_workload(config: dict[str, Any]) -> None:
    """Do the steps of the workload that ``config`` names, on the GPU if the process has one, and report losses.

    Args:
        config: As :func:`config_of` makes it.
    """
    if config["size"] is None:
        _train_own(config)
    else:
        _do_steps(config)


def _do_steps(config: dict[str, Any]) -> None:
    """Do the steps of a workload of ``run``; it seeds itself, so that all trials do the same."""
    if config["folder"] not in sys.path:
        sys.path.insert(0, config["folder"])
    device = "gpu" if ray.get_gpu_ids() else "cpu"
    name = config["workload"]
    steps = checked_steps(load_workload(name)(config["size"], device), name)
    chunk = -(-config["num_steps"] // config["num_reports"])
    for done in range(1, config["num_steps"] + 1):
        result = steps.with_transfers()
        if done % chunk == 0 or done == config["num_steps"]:
            wait_for_devices(result)
            loss = 0.0 if result is None else checked_loss(result, name, done)
            tune.report({"loss": loss, "steps": done})


def _train_own(config: dict[str, Any]) -> None:
    """Train one of the four, and report the mean loss."""
    # Here and not above, since this module is imported before the trial's process is set up.
    import torch

    from ..workloads.torch_models import MODELS, make_data

    workload, model = _OWN[config["workload"]], MODELS[config["workload"]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(config["seed"])
    samples, labels = make_data(model, _NUM_BATCHES, workload.batch_size)
    trained = model.build().to(device)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-4)
    chunk = -(-config["num_steps"] // config["num_reports"])
    total = torch.zeros((), device=device)
    for step in range(config["num_steps"]):
        which = step % _NUM_BATCHES
        loss = torch.nn.functional.cross_entropy(trained(samples[which].to(device)), labels[which].to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.detach()
        done = step + 1
        if done % chunk == 0 or done == config["num_steps"]:
            # Reading the loss waits for the device, so a report is a point in time at which the work is done.
            tune.report({"loss": total.item() / done, "steps": done})
