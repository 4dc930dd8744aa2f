"""A plain process, run with ``-m``, that times a workload's step with PyTorch's own timer."""

import sys

from torch.utils.benchmark import Timer

from tune_policies.benchmarks.measuring.noise import noise_between, read_noise
from tune_policies.benchmarks.workloads.registry import load_workload

from .timed_by_torch import TimedByTorch

MIN_S = 1.0
"""For how long it repeats the step."""


def main() -> None:
    """Print the median seconds of a step on the CPU, with one thread, as a measured process of one CPU has."""
    workload, size, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    steps = load_workload(workload)(size, "cpu")
    timer = Timer("step()", globals={"step": steps.compute or steps.with_transfers}, num_threads=1)
    before = read_noise()
    step_s = timer.blocked_autorange(min_run_time=MIN_S).median
    print(TimedByTorch(step_s=step_s, noise=noise_between(number, [before], [read_noise()])).to_json())


if __name__ == "__main__":
    main()
