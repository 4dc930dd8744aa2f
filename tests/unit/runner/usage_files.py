"""Records of GPU memory, and the files of trials that contain them."""

import json

from tune_policies.oom import OutOfMemory
from tune_policies.trainers.usage.gpu_memory_records import (
    GpuMemoryUsage,
    RunUsage,
    TrialGpuMemory,
)
from tune_policies.trainers.usage.oom_report import OomReport

GIB = 2**30
TORCH_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB "
    "of which 1.25 GiB is free. Including non-PyTorch memory, this process has 18.00 GiB memory in use."
)


def report(usage):
    """Return the line that a process adds to an out-of-memory error."""
    return OomReport(out_of_memory=OutOfMemory(kind="accelerator"), gpu_memory=usage).to_note()


def used(gib, *, share_gib=8, gpus=0.5, **fields):
    whole = {"share_bytes": int(share_gib * GIB)} if gpus < 1 else {"device_bytes": 16 * GIB}
    return GpuMemoryUsage(gpus=gpus, peak_reserved_bytes=int(gib * GIB), **(whole | fields))


def run_of(*usages):
    return RunUsage(trials=tuple(TrialGpuMemory(name=f"t{i}", usage=usage) for i, usage in enumerate(usages)))


def write(folder, name, *results, error=None):
    trial = folder / f"{name}_2026-01-02_03-04-05"
    trial.mkdir(parents=True)
    (trial / "params.json").write_text("{}")
    (trial / "result.json").write_text("".join(line if isinstance(line, str) else json.dumps(line) for line in results))
    if error is not None:
        (trial / "error.txt").write_text(error)
    return trial


def result(usage):
    return json.dumps({"loss": 1, "gpu_memory": usage.to_result()}) + "\n"


def failed(*errors):
    """Return the content of the file in which Tune writes the failures of a trial."""
    head = 'Failure # {} (occurred at 2026-01-02_03-04-05)\nTraceback (most recent call last):\n  File "a.py", line 1\n'
    return "".join(f"{head.format(number)}{error}\n\n" for number, error in enumerate(errors, 1))
