"""Probe the cluster, then tune and train in PyTorch and TensorFlow.

Each part is a short file in this folder that you can copy.
"""

import subprocess
import sys

import ray
import train_in_tune
import tune_pytorch
import tune_tensorflow
from rich.console import Console
from rich.table import Table

from tune_policies.values.units import format_bytes

PARTS = {
    "PyTorch": tune_pytorch,
    "PyTorch Train, 2 workers": train_in_tune,
    "TensorFlow": tune_tensorflow,
}


def describe(trial):
    config = ", ".join(f"{key}={value}" for key, value in trial.config.items())
    result = trial.last_result
    slot = result["slot"].partition(";")[0]  # omit the resources of Train drivers
    memory = result.get("gpu_memory", {})
    used = memory.get("peak_reserved_bytes") or memory.get("peak_allocated_bytes")
    return config, f"{result['accuracy']:.3f}", slot, format_bytes(used) if used else "no GPU"


def main():
    console = Console()
    console.rule("Resources of the cluster")
    probe = subprocess.run([sys.executable, "-m", "tune_policies", "probe"], check=False)
    if probe.returncode != 0:
        sys.exit(probe.returncode)  # the command has printed the error
    ray.init(logging_level="ERROR", log_to_driver=False)
    table = Table(title="Handwritten digits: every trial")
    for heading in ("Part", "Config", "Accuracy", "Slot", "GPU memory used"):
        table.add_column(heading)
    for name, part in PARTS.items():
        console.rule(name)
        for trial in part.main().trials:
            table.add_row(name, *describe(trial))
    ray.shutdown()
    console.print(table)


if __name__ == "__main__":
    main()
