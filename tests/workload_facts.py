"""Returns the losses and errors of workloads for tests. As a program, it prints them for several workloads as JSON."""

import json
import sys

from tune_policies import ProbeError
from tune_policies.benchmarks.workloads.registry import load_workload


def facts(name, size):
    """Return the losses of a workload on the CPU, and the message of its error about a missing GPU."""
    workload = load_workload(name)
    first, second, kept = (workload(size, "cpu") for _ in range(3))
    number = first.steps_per_epoch
    return {
        "first": losses(first.with_transfers, number),
        "second": losses(second.with_transfers, number),
        "kept": kept.compute and losses(kept.compute, number),
        "later": kept.compute and losses(kept.compute, 4 * number)[-number:],
        "refusal": refusal(lambda: workload(size, "gpu")),
    }


def losses(step, number):
    return [float(step()) for _ in range(number)]


def refusal(call):
    try:
        call()
    except ProbeError as error:
        return str(error)
    return None


if __name__ == "__main__":
    print(json.dumps({name: facts(name, int(sys.argv[1])) for name in sys.argv[2:]}))
