"""Measures what only a GPU can show, step by step: ``python -m tests.on_gpu.campaign RECORDS``.

Each step runs one command with a time limit, and writes its record to the folder RECORDS. A step whose record exists is
not run again, so a later call continues. After each step, ``steps.json`` lists the outcomes, and ``--archive`` packs
all records into one file. ``--seconds`` ends a call in time: a step starts only if its limit fits into the time that is
left. ``--rehearse`` runs the same steps with small sizes on the CPU, to find mistakes in the steps before a GPU is
paid for.
"""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from tune_policies.benchmarks.record.machine import describe_machine
from tune_policies.probe.nvml import NvmlError, read_driver

ROOT: Final = Path(__file__).parents[2]
OUTCOMES: Final = "steps.json"

PYTHON: Final = sys.executable
_BENCH: Final = (PYTHON, "-m", "tune_policies", "bench")
_PYTEST: Final = (PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml={record}", "tests/on_gpu")

WORKLOADS: Final = (
    *("matmul@256,4096", "mlp@16,256", "cnn@16,256", "transformer@16,64", "resnet18@16,64", "resnet50@16,64"),
    *("resnet50-tf32@64", "resnet50-fp16@64", "raytracing@64,1024", "heat-2d@256,2048", "heat-3d@32,128"),
    *("n-body@256,4096", "doubling@65536,16777216", "branching@1024,65536", "boosting@16384,262144"),
    *("iterative-tasks@65536,4194304", "iterative-actor@65536,4194304"),
)
"""The built-in workloads without TensorFlow: those that need a GPU's memory or many steps only in the larger sizes."""

POLICIES: Final = ("whole", "half", "quarter", "eighth", "sixteenth", "learning")
"""The policies of ``learning_sweep``: fixed fractions of a GPU, and ``LearningPolicy()``."""


class Step(NamedTuple):
    """A command that writes a record.

    Attributes:
        part: The number of the part: 1 tests, 2 GPU against CPU, 3 trials per hour, 4 learning, 5 memory and commands.
        record: The file name of the record.
        limit_s: The time limit in seconds.
        command: The command. ``{record}`` stands for the path of the record, and ``{NAME}`` for the record of an
            earlier step without its extension. The output of a command without ``{record}`` becomes the record.
        rehearsal: The command on a machine without a GPU. By default, it is the same.
    """

    part: int
    record: str
    limit_s: float
    command: Sequence[str]
    rehearsal: Sequence[str] = ()


def _benchmark(name: str) -> Step:
    command = (*_BENCH, "run", *WORKLOADS, "--quick", "--cpus", "4", "--no-control", "--output", "{record}")
    rehearsal = (*_BENCH, "run", "mlp@4", "--device", "cpu", "--rounds", "1", "--no-control", "--output", "{record}")
    return Step(2, f"{name}.json", 480, command, rehearsal)


def _packing(name: str, *workloads: str, mps: bool = False) -> Step:
    at_once = [option for number in (2, 4, 8, 16) for option in ("--trials-per-gpu", str(number))]
    options = (*at_once, "--repetitions", "1", *(["--mps"] if mps else []), "--output", "{record}")
    # Without a GPU, the command explains that it needs one. The rehearsal shows that its options are valid.
    return Step(3, f"{name}.json", 240, (*_BENCH, "packing", *workloads, *options))


def _sweep(policy: str) -> Step:
    command = (PYTHON, "-m", "tests.on_gpu.learning_sweep", policy, "{record}")
    return Step(4, f"sweep-{policy}.json", 400, command, (*command, "--trials", "4", "--steps", "2"))


STEPS: Final = (
    Step(1, "gpu-tests.xml", 300, (*_PYTEST, "-m", "gpu and not whole_gpu", "--numprocesses", "8")),
    Step(1, "whole-gpu-tests.xml", 500, (*_PYTEST, "-m", "gpu and whole_gpu")),
    _benchmark("benchmarks"),
    Step(
        2,
        "decision.json",
        60,
        (*_BENCH, "decide", "{benchmarks}.json", "--output", "{record}"),
        (PYTHON, "-c", "print('a decision needs a GPU')"),
    ),
    _benchmark("benchmarks-again"),
    Step(
        2,
        "regret.txt",
        120,
        (PYTHON, "-m", "tests.evidence", "regret", "{benchmarks}.json", "{benchmarks-again}.json"),
        (PYTHON, "-c", "print('the regret of a decision needs a GPU')"),
    ),
    _packing("packing-mlp", "mlp"),
    _packing("packing-cnn", "cnn"),
    _packing("packing-resnet18", "resnet18"),
    _packing("packing-transformer", "transformer"),
    _packing("packing-mix"),
    _packing("packing-mix-mps", mps=True),
    *map(_sweep, POLICIES),
    Step(5, "estimates.json", 200, (PYTHON, "-m", "tests.on_gpu.estimates", "{record}")),
    Step(5, "overheads.json", 200, (PYTHON, "-m", "tests.on_gpu.overheads", "{record}")),
    Step(5, "probe.txt", 60, (PYTHON, "-m", "tune_policies", "probe")),
    Step(5, "doctor.txt", 60, (PYTHON, "-m", "tune_policies", "doctor")),
    Step(5, "readme.txt", 120, (PYTHON, "-c", "from tests.on_gpu.campaign import run_readme; run_readme()")),
    Step(5, "demo.txt", 200, (PYTHON, "examples/demo.py")),
)


def run_readme() -> None:
    """Run the first program of the README."""
    text = (ROOT / "README.md").read_text()
    program = text.partition("```python\n")[2].partition("```")[0]
    exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})


def run_step(step: Step, folder: Path, *, rehearse: bool) -> dict[str, Any]:
    """Run the command of a step, and return its outcome: the exit status, the duration and the end of its output."""
    record = folder / step.record
    command = [_filled(word, folder, record) for word in (rehearse and step.rehearsal) or step.command]
    log = record.with_suffix(".log")
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    begin_s = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=ROOT, env=environment, start_new_session=True
        )
        try:
            status: int | None = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end_session(process)
    has_own_record = any("{record}" in word for word in step.command)
    text = log.read_text(errors="replace")
    if status is not None and not has_own_record:
        record.write_text(text)
    return {
        "exit_status": status,  # None if the time limit was reached
        "seconds": round(time.monotonic() - begin_s, 1),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "is_rehearsal": rehearse,
        "end_of_output": text[-2_000:],
    }


def _filled(word: str, folder: Path, record: Path) -> str:
    word = word.replace("{record}", str(record))
    for other in STEPS:
        name = Path(other.record).stem
        word = word.replace(f"{{{name}}}", str(folder / name))
    return word


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """Kill what a step has left running, because it would disturb the next one."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        time.sleep(2)


def is_covered(step: Step, folder: Path, outcomes: Mapping[str, Any], *, rehearse: bool) -> bool:
    """Return whether the record of a step exists, and its command has ended in the same mode."""
    outcome = outcomes.get(step.record)
    if outcome is None or outcome["is_rehearsal"] != rehearse:
        return False
    return outcome["exit_status"] is not None and (folder / step.record).exists()


def describe_gpu() -> dict[str, Any]:
    """Return the machine, and what the driver reports, or why it reports nothing."""
    try:
        driver: Any = read_driver()
    except NvmlError as error:
        driver = str(error)
    return {"machine": describe_machine(), "driver": driver}


def run_steps(
    steps: Sequence[Step], records: Path, *, seconds: float, archive: Path | None = None, rehearse: bool = False
) -> list[Step]:
    """Run the steps that have no record yet, as long as their limits fit into ``seconds``. Return the steps left."""
    until_s = time.monotonic() + seconds
    records.mkdir(parents=True, exist_ok=True)
    file = records / OUTCOMES
    outcomes: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    left = []
    for step in steps:
        if is_covered(step, records, outcomes, rehearse=rehearse):
            continue
        if time.monotonic() + step.limit_s > until_s:
            left.append(step)
            continue
        print(f"part {step.part}: {step.record} …", flush=True)
        # An earlier record without an end, or of a rehearsal, must not pass for the new one.
        (records / step.record).unlink(missing_ok=True)
        outcome = run_step(step, records, rehearse=rehearse)
        outcomes[step.record] = outcome | describe_gpu()
        file.write_text(json.dumps(outcomes, indent=1))
        if archive is not None:
            _pack(records, archive)
        if outcome["exit_status"] is None:
            print(f"  no end after {step.limit_s:g} s")
        else:
            print(f"  exit status {outcome['exit_status']} after {outcome['seconds']:g} s")
        if not is_covered(step, records, outcomes, rehearse=rehearse):
            left.append(step)
    return left


def main(
    records: Annotated[Path, typer.Argument(help="The folder of the records.")],
    *,
    part: Annotated[list[int] | None, typer.Option(help="Number of a part. Can be repeated.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time for this call, in seconds.")] = 86_400,
    archive: Annotated[Path | None, typer.Option(help="File in which all records are packed after each step.")] = None,
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Use small sizes and the CPU.")] = False,
) -> None:
    """Run the steps that have no record yet, and print the steps that are left."""
    steps = [step for step in STEPS if not part or step.part in part]
    left = run_steps(steps, records.resolve(), seconds=seconds, archive=archive, rehearse=rehearse)
    for step in left:
        print(f"left: part {step.part}, {step.record} (at most {step.limit_s:g} s)")
    raise typer.Exit(bool(left))


def _pack(records: Path, archive: Path) -> None:
    new = archive.with_suffix(".new")
    with tarfile.open(new, "w:gz") as packed:
        packed.add(records, arcname=records.name)
    new.replace(archive)


if __name__ == "__main__":
    typer.run(main)
