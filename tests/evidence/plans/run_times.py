"""Measures the duration of programs with empty trials: plain Tune, Tune with a limited queue, and Tune under a policy.

Each program starts Python and its own Ray instance, runs the trials on 4 CPUs in reused processes, and ends. Plain Tune
keeps hundreds of placement groups pending in Ray unless ``TUNE_MAX_PENDING_TRIALS_PG`` limits them. Under a policy, Ray
receives only the requests that fit.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.benchmarks.record.summary import spread
from tune_policies.files.terminal import TextConsole, empty_table

_SLOTS: Final = 4
_QUEUE: Final = "by hand, queue limited"
_POLICY: Final = "under a policy"
_CONFIGURATIONS: Final = ("by hand", _QUEUE, _POLICY)
_DEADLINE_S: Final = 3600


def measure_run_times(trial_counts: list[int], repetitions: int) -> None:
    """Print the duration of each program, its ratio to plain Tune, and the driver's CPU time per trial."""
    table = empty_table("Programs with empty trials", "Trials", "Program", "Time (s)", "Range", "Ratio", "Driver (ms)")
    for num_trials in trial_counts:
        rounds = [_round(num_trials, seed) for seed in range(repetitions)]
        for name in _CONFIGURATIONS:
            seconds = [one[name]["seconds"] for one in rounds]
            ratios = [one[name]["seconds"] / one["by hand"]["seconds"] for one in rounds]
            driver = [one[name]["driver_s"] * 1e3 / num_trials for one in rounds]
            shortest_longest = f"{min(seconds):.1f} to {max(seconds):.1f}"
            # With few trials, the driver spends most of its CPU time on imports.
            per_trial = f"{spread(driver)}" if num_trials >= 100 else ""
            table.add_row(
                f"{num_trials:,}", name, f"{spread(seconds)}", shortest_longest, f"{spread(ratios)}", per_trial
            )
    TextConsole(width=110).print(table)
    print(
        f"medians of {repetitions} rounds ± half the interquartile range; each round runs the programs in random order"
    )
    print(f"{describe_machine()}\ncommand: {own_command()}")


def _round(num_trials: int, seed: int) -> dict[str, dict[str, float]]:
    order = random.Random(seed).sample(_CONFIGURATIONS, len(_CONFIGURATIONS))
    return {name: _program(name, num_trials) for name in order}


def _program(name: str, num_trials: int) -> dict[str, float]:
    environment = dict(os.environ)
    if name == _QUEUE:
        environment["TUNE_MAX_PENDING_TRIALS_PG"] = str(2 * _SLOTS)
    way = "policy" if name == _POLICY else "hand"
    command = [sys.executable, "-m", __name__, way, str(num_trials)]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_DEADLINE_S, check=True)
    return {"seconds": time.perf_counter() - start, "driver_s": json.loads(done.stdout.splitlines()[-1])}


def _train(config: dict[str, Any]) -> None:
    from ray import tune

    tune.report({"score": 1})


def _main(way: str, num_trials: int) -> None:
    import ray
    from ray import tune

    ray.init(address="local", num_cpus=_SLOTS, num_gpus=0, include_dashboard=False, logging_level="ERROR")
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "num_samples": num_trials, "reuse_actors": True, "verbose": 0, "storage_path": folder,
        }  # fmt: skip
        if way == "policy":
            from tune_policies import CpuPolicy, GpuMemoryPolicy, run

            run(_train, GpuMemoryPolicy(gpu_memory="6GiB") | CpuPolicy(cpus=1), **options)
        else:
            tune.run(_train, resources_per_trial={"cpu": 1}, **options)
        driver_s = time.process_time() - start
    ray.shutdown()
    print(json.dumps(driver_s))


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
