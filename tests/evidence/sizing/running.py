"""Runs one program under each of several policies: ``python -m tests.evidence.sizing.running FOLDER``.

The folder contains the program, ``program.json``, and a list of policies, ``policies.json``. All runs use one Ray. A
short run before the first one loads everything that a process imports. Each outcome is a line of ``outcomes``.
"""

import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import tune

from tests.evidence.sizing.programs import Program
from tune_policies import CpuPolicy, ResourcePolicy, run
from tune_policies.policies.policy import build_policy


class Decisions(logging.Handler):
    """Keeps the times at which the scheduler decided to start each trial, which it logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.times: list[tuple[str, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the name of the trial and the time of the decision."""
        trial, separator, _ = record.getMessage().partition(" starts in a slot")
        if separator:
            self.times.append((trial, record.created))


def trainable(program: Program, folder: str) -> Callable[[dict[str, Any]], None]:
    """Return a trainable that takes the steps of a trial, and appends the times of its process to ``folder``."""

    def note(**event: Any) -> None:
        with Path(folder, "events").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def train(config: dict[str, Any]) -> None:
        case = config["case"]
        done, checkpoint = 0, tune.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as saved:
                done = json.loads(Path(saved, "done").read_text())
        step = program.step_of(case["size"], folder)
        begin_cpu_s, num_reports = time.process_time(), 0
        note(trial=tune.get_context().get_trial_name(), began_s=time.time(), start_cpu_s=begin_cpu_s)
        while done < program.num_steps:
            time.sleep(program.waiting_s)
            step()
            done, num_reports = done + 1, num_reports + 1
            if num_reports == 2:
                note(second_s=time.time())
            if done == program.num_steps:
                rss = psutil.Process().memory_info().rss
                note(x=case["x"], ended_s=time.time(), cpu_s=time.process_time() - begin_cpu_s, rss=rss)
            if not program.saves:
                tune.report({"steps": done})
                continue
            with tempfile.TemporaryDirectory() as saved:
                Path(saved, "done").write_text(json.dumps(done))
                tune.report({"steps": done}, checkpoint=tune.Checkpoint.from_directory(saved))

    return train


def overhead_cpu_s() -> float:
    """Return the CPU time so far of this process, Tune's driver, and of Ray's processes other than workers."""
    driver = psutil.Process()
    total_s = 0.0
    for process in (driver, *driver.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            if not process.name().startswith("ray::"):
                used = process.cpu_times()
                total_s += used.user + used.system
    return total_s


def run_once(program: Program, policy: ResourcePolicy, folder: Path) -> dict[str, Any]:
    """Run the program under the policy.

    Return its duration in seconds, the end of its trials, its events, and the CPU time of Tune's driver and Ray.
    """
    folder.mkdir()
    decisions = Decisions()
    logging.getLogger("tune_policies").addHandler(decisions)
    begin_cpu_s, begin_s = overhead_cpu_s(), time.time()
    analysis = run(
        trainable(program, str(folder)),
        policy,
        config={"case": tune.grid_search(program.cases)},
        storage_path=str(folder / "results"),
        name="run",
        verbose=0,
        raise_on_failed_trial=False,
    )
    seconds, overhead_s = time.time() - begin_s, overhead_cpu_s() - begin_cpu_s
    logging.getLogger("tune_policies").removeHandler(decisions)
    events = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
    num_lost = sum(trial.status != "TERMINATED" for trial in analysis.trials)
    times = {"begin_s": begin_s, "decisions": decisions.times, "events": events}
    return {
        "policy": repr(policy),
        "seconds": seconds,
        "overhead_cpu_s": overhead_s,
        "num_lost": num_lost,
        **times,
    }


def main(folder: Path) -> None:
    """Run the program in ``folder`` under each policy."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(relativeCreated)d %(message)s")
    logging.getLogger("tune_policies").setLevel(logging.DEBUG)
    program = Program.from_json((folder / "program.json").read_text())
    policies = [build_policy(data) for data in json.loads((folder / "policies.json").read_text())]
    memory = int(program.memory_gib * 2**30)
    ray.init(address="local", num_cpus=program.num_cpus, _memory=memory, include_dashboard=False, log_to_driver=False)
    try:
        short = program.model_copy(update={"num_trials": 1, "num_steps": 1, "waiting_s": 0.0})
        run_once(short, CpuPolicy(), folder / "short")
        for number, policy in enumerate(policies):
            outcome = run_once(program, policy, folder / str(number))
            with (folder / "outcomes").open("a") as file:
                file.write(json.dumps(outcome) + "\n")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
