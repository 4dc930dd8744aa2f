"""Measures what a reported result and a trial cost in plain Tune, under a policy, and with ``PolicyCallback``.

Each program starts its own Ray instance, where each CPU is a slot, and limits Tune's queue to 16 placement groups.
First, one trial reports many results with one metric. Then, many trials report one result each in reused processes.
Start-up is not included: counting begins after the first tenth of the results and trials.

The share of this project's code is sampled in the phase with many trials: every 2 ms of the driver's CPU time inside a
step of Tune's controller, the innermost function that belongs to Ray or to this project decides.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import ray
from ray import tune
from ray.tune.execution.tune_controller import TuneController

import tune_policies
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.benchmarks.record.summary import spread
from tune_policies.files.terminal import TextConsole, empty_table

_PLAIN: Final = "plain Tune"
_POLICY: Final = "under a policy"
_CALLBACK: Final = "with PolicyCallback"
_PROGRAMS: Final = (_PLAIN, _POLICY, _CALLBACK)
_DEADLINE_S: Final = 900
_SAMPLED_EVERY_S: Final = 0.002
_OWN_FOLDER: Final = f"{Path(tune_policies.__file__).parent}/"
_RAY_FOLDER: Final = f"{Path(ray.__file__).parent}/"
_SHARE: Final = "own code in a step of Tune's controller (%)"
_COSTS: Final = {
    "CPU time of a trial's process per result (ms)": 1e3,
    "CPU time of the driver per result (ms)": 1e3,
    "result.json per result (bytes)": 1,
    "TensorBoard events per result (bytes)": 1,
    "CPU time of a trial's process per trial (ms)": 1e3,
    "CPU time of the driver per trial (ms)": 1e3,
    "state and results per trial (bytes)": 1,
    "of these, state (bytes)": 1,
    _SHARE: 100,
}
"""The measured costs, and the factor from seconds or bytes to the unit."""


def measure_run_costs(num_results: int, num_trials: int, num_slots: int, repetitions: int) -> None:
    """Print each cost in plain Tune, and the ratio of the other programs to plain Tune in the same round."""
    rounds = [_round((num_results, num_trials, num_slots), seed) for seed in range(repetitions)]
    table = empty_table("Costs of results and trials", "Cost", _PLAIN, _POLICY, "Ratio", _CALLBACK, "Ratio")
    for row, (name, factor) in enumerate(_COSTS.items()):
        cells = []
        for program in _PROGRAMS:
            costs = [one[program][row] for one in rounds]
            cells.append(f"{spread([cost * factor for cost in costs])}")
            if program != _PLAIN and name == _SHARE:
                cells.append("")
            elif program != _PLAIN:
                cells.append(f"{spread([one[program][row] / one[_PLAIN][row] for one in rounds])}")
        table.add_row(name, *cells)
    TextConsole(width=150).print(table)
    print(
        f"medians of {repetitions} rounds ± half the interquartile range; each round runs the programs in random order"
    )
    print(f"{describe_machine()}\ncommand: {own_command()}")


def _round(numbers: tuple[int, int, int], seed: int) -> dict[str, list[float]]:
    order = random.Random(seed).sample(_PROGRAMS, len(_PROGRAMS))
    return {name: _program(name, numbers) for name in order}


def _program(name: str, numbers: tuple[int, int, int]) -> list[float]:
    command = [sys.executable, "-m", __name__, name, *map(str, numbers)]
    environment = {**os.environ, "TUNE_MAX_PENDING_TRIALS_PG": "16"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_DEADLINE_S, check=True)
    costs: list[float] = json.loads(done.stdout.splitlines()[-1])
    return costs


def _report(config: dict[str, Any]) -> None:
    """Report results, and append this process's CPU time before the first and after the last counted result."""
    for number in range(config["num_results"]):
        if number == config["num_results"] // 10:
            _note_cpu_time(config["file"])
        tune.report({"score": number})
    _note_cpu_time(config["file"])


def _note_cpu_time(file: str) -> None:
    with Path(file).open("a") as times:
        times.write(f"{os.getpid()} {time.process_time()}\n")


class _DriverTimes(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Records the CPU time of the driver at each result, and at the end of each trial."""

    def __init__(self) -> None:
        self.at_results: list[float] = []
        self.at_ends: list[float] = []

    def on_trial_result(self, *_: Any, **info: Any) -> None:
        self.at_results.append(time.process_time())

    def on_trial_complete(self, *_: Any, **info: Any) -> None:
        self.at_ends.append(time.process_time())


class _StepSamples:
    """Samples which code uses the CPU inside ``TuneController.step``."""

    def __init__(self) -> None:
        self.num_own = 0
        self.num_all = 0

    @property
    def own_share(self) -> float:
        return self.num_own / max(self.num_all, 1)

    @contextmanager
    def taken(self) -> Iterator[None]:
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLED_EVERY_S, _SAMPLED_EVERY_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        owner = None
        while frame is not None:
            file = frame.f_code.co_filename
            if owner is None and file.startswith((_OWN_FOLDER, _RAY_FOLDER)):
                owner = file
            if frame.f_code is TuneController.step.__code__:
                self.num_all += 1
                self.num_own += owner is not None and owner.startswith(_OWN_FOLDER)
                return
            frame = frame.f_back


def _per_step(times: Sequence[float]) -> float:
    counted = times[len(times) // 10 :]
    return (counted[-1] - counted[0]) / (len(counted) - 1)


def _size(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.rglob(pattern) if file.is_file())


def _run(program: str, num_trials: int, num_results: int, folder: Path) -> _DriverTimes:
    times = _DriverTimes()
    config = {"num_results": num_results, "file": str(folder.with_suffix(".times"))}
    options: dict[str, Any] = {"num_samples": num_trials, "config": config, "reuse_actors": True, "verbose": 0}
    options |= {"storage_path": str(folder.parent), "name": folder.name, "callbacks": [times]}
    if program == _PLAIN:
        tune.run(_report, resources_per_trial={"cpu": 1}, **options)
        return times
    from tune_policies import CpuPolicy, PolicyCallback, run

    if program == _CALLBACK:
        options["callbacks"].append(PolicyCallback())
    run(_report, CpuPolicy(cpus=1), **options)
    return times


def _main(program: str, num_results: int, num_trials: int, num_slots: int) -> None:
    ray.init(address="local", num_cpus=num_slots, num_gpus=0, include_dashboard=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "results")
        driver = _run(program, 1, num_results, folder)
        seconds = [float(line.split()[1]) for line in folder.with_suffix(".times").read_text().splitlines()]
        costs = [(seconds[-1] - seconds[0]) / (num_results - num_results // 10), _per_step(driver.at_results)]
        costs += [_size(folder, pattern) / num_results for pattern in ("result.json", "events.*")]

        folder = Path(temporary, "trials")
        samples = _StepSamples()
        with samples.taken():
            driver = _run(program, num_trials, 1, folder)
        by_process = defaultdict(list)
        for line in folder.with_suffix(".times").read_text().splitlines():
            pid, at_s = line.split()
            by_process[pid].append(float(at_s))
        # A trial notes two times. Processes start at different times, so each process omits its own first trials.
        processes = [times[4::2] for times in by_process.values() if len(times) > 8]
        spent_s = sum(times[-1] - times[0] for times in processes)
        costs += [spent_s / sum(len(times) - 1 for times in processes), _per_step(driver.at_ends)]
        costs += [_size(folder, pattern) / num_trials for pattern in ("*", "experiment_state*")]
        costs.append(samples.own_share)
    ray.shutdown()
    print(json.dumps(costs))


if __name__ == "__main__":
    _main(sys.argv[1], *map(int, sys.argv[2:]))
