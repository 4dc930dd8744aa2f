"""A plain process, run with ``-m``, that times a workload's step with PyTorch's own timer."""

import sys

from torch.utils.benchmark import Timer

from ..workloads.registry import load_workload

MIN_S = 1.0
"""For how long it repeats the step."""


def main() -> None:
    """Print the median seconds of a step on the CPU, with one thread, as a measured process of one CPU has."""
    workload, size = sys.argv[1], int(sys.argv[2])
    steps = load_workload(workload)(size, "cpu")
    timer = Timer("step()", globals={"step": steps.compute or steps.with_transfers}, num_threads=1)
    print(timer.blocked_autorange(min_run_time=MIN_S).median)


if __name__ == "__main__":
    main()
