"""The main job, end to end: probe, plan, tune and train, in PyTorch and in TensorFlow.

Each part is one short file beside this one, made to be copied.
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


def describe(plan, trial):
    config = ", ".join(f"{key}={value}" for key, value in trial.config.items())
    resources = f"{plan.num_workers} x ({plan.worker})" if plan.num_workers else str(plan.worker)
    used = trial.last_result["peak_gpu_memory_bytes"]
    return config, f"{trial.last_result['accuracy']:.3f}", resources, "no GPU" if used is None else format_bytes(used)


def main():
    console = Console()
    console.rule("What the cluster offers")
    probe = subprocess.run([sys.executable, "-m", "tune_policies", "probe"], check=False)
    if probe.returncode != 0:
        sys.exit(probe.returncode)  # it has said why
    ray.init(logging_level="ERROR", log_to_driver=False)
    table = Table(title="Handwritten digits: every trial")
    for heading in ("Part", "Config", "Accuracy", "Each trial had", "GPU memory used"):
        table.add_column(heading)
    for name, part in PARTS.items():
        console.rule(name)
        plan, results = part.main()
        for trial in results.trials:
            table.add_row(name, *describe(plan, trial))
    ray.shutdown()
    console.print(table)


if __name__ == "__main__":
    main()
