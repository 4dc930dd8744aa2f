"""The commands that measure: ``run`` and ``packing``."""

import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from tune_policies import InvalidResourcesError
from tune_policies.cli.options import Address, Force, Json, TimeoutS
from tune_policies.files.terminal import print_to_stderr

from ..measuring.default_rounds import QUICK, THOROUGH
from ..record.run_set import RunSet
from ..record.settings import Settings

app = typer.Typer(add_completion=False)


@app.command()
def run(
    context: typer.Context,
    workload: Annotated[
        list[str] | None,
        typer.Argument(help="Name of a workload, or module:function. Append sizes with @, such as mlp@64,256."),
    ] = None,
    *,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="cpu, gpu, a fraction such as gpu@0.25, or Ray's resource name of another accelerator, such as TPU; "
            "can be repeated.  [default: cpu, gpu]"
        ),
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, help="Size of workloads without their own sizes; can be repeated.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of fresh processes per configuration.  "
            f"[default: {THOROUGH.num_rounds}; quick: {QUICK.num_rounds}]",
        ),
    ] = None,
    cpus: Annotated[float, typer.Option(help="CPUs per trial, on every device.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random order of measurements.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the record to this file.  [default: run-DATE-TIME.json]"),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"Measure one size per workload (or the given sizes) in {QUICK.num_rounds} rounds, in about a minute "
            f"for each size. A process has a time limit of {QUICK.process_timeout_s:g} s.",
        ),
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the run recorded in this file, with the same settings.")
    ] = None,
    process_timeout_s: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Time limit of a process, in seconds. If a process exceeds it, later rounds skip its configuration.  "
            f"[default: {THOROUGH.process_timeout_s:g}; quick: {QUICK.process_timeout_s:g}]",
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option(help="Measure the first device twice, to show how noisy the machine is.")
    ] = True,
    address: Address = None,
    timeout_s: TimeoutS = 30.0,
    json: Json = False,
) -> None:
    """Measure how long workloads take to start and to run a step on each device, in fresh processes."""
    from ..measuring.device_plans import parse_devices
    from ..measuring.rounds import Session, measure_to_file
    from ..record.machine import own_command
    from ..record.run_set_file import read_run_set

    settings = None
    if resume is not None:
        _check_resume(context)
    else:
        # The defaults of these options depend on ``--quick``, so the options themselves have none.
        effort = QUICK if quick else THOROUGH
        settings = Settings(
            sizes=_sizes(workload or [], size or [], quick=quick),
            devices=tuple(map(str, parse_devices(device or ["cpu", "gpu"]))),
            cpus=cpus,
            num_rounds=rounds or effort.num_rounds,
            num_blocks=effort.num_blocks,
            process_timeout_s=process_timeout_s or effort.process_timeout_s,
            seed=seed,
            has_control=control,
        )
    session = Session(
        settings=settings,
        command=own_command(),
        output=resume or output or Path(f"run-{datetime.now():%Y%m%d-%H%M%S}.json"),
        address=address,
        timeout_s=timeout_s,
    )
    try:
        run_set = measure_to_file(session)
    # The record in the file contains all groups that were complete before Ctrl-C.
    except KeyboardInterrupt:
        if session.output.exists():
            _show(read_run_set(session.output), session.output, as_json=json)
        raise
    _show(run_set, session.output, as_json=json)
    # Exit status 0 would let a script continue with a record without times.
    if not run_set.runs:
        raise typer.Exit(1)


def _check_resume(context: typer.Context) -> None:
    """Reject options that have no effect, because a resumed run uses the settings in its file."""
    for name in context.params:
        # A default value is no reason to refuse, so the value alone does not answer this question.
        source = context.get_parameter_source(name)
        is_given = source is not None and source.name == "COMMANDLINE"
        if is_given and name not in ("resume", "address", "timeout_s", "json"):
            given = f"--{name.replace('_', '-')}"
            if context.params[name] is False:
                given = f"--no-{name}"
            if name == "workload":
                given = "WORKLOAD"  # an argument, which has no dashes
            raise InvalidResourcesError(f"--resume uses the settings in the file. Omit {given}")


def _sizes(workloads: list[str], sizes: list[int], *, quick: bool) -> dict[str, tuple[int, ...]]:
    """Return the sizes to measure by workload: its own sizes, the requested ``sizes``, or its default sizes."""
    from ..workloads.registry import BUILT_IN, check_workload

    if not workloads:
        names = ", ".join(BUILT_IN)
        raise InvalidResourcesError(f"no workload is given. Choose one of {names}, or pass your own as module:function")
    if sizes:
        _check_size_option(workloads)
    found: dict[str, tuple[int, ...]] = {}
    for text in workloads:
        name, own_sizes = _name_and_sizes(text)
        built_in = check_workload(name)
        wanted: Sequence[int] = own_sizes or sizes
        if not wanted:
            if built_in is None:
                raise InvalidResourcesError(f"{name} has no default sizes. Pass sizes, such as --size 64 --size 256")
            wanted = built_in.sizes
            if quick:  # measure only one size, because a sweep would take too long
                middle = len(wanted) // 2
                wanted = wanted[middle : middle + 1]
        # A workload can be given several times with different sizes. Each size is measured once.
        found[name] = tuple(dict.fromkeys((*found.get(name, ()), *wanted)))
    return found


def _check_size_option(workloads: list[str]) -> None:
    if all("@" in text for text in workloads):
        raise InvalidResourcesError(
            "--size has no effect, because no workload without its own sizes is given. Omit --size"
        )


def _name_and_sizes(text: str) -> tuple[str, list[int]]:
    """Return the name in a workload such as ``"mlp@64,256"``, and its own sizes, or an empty list without ``@``."""
    name, at, sizes = text.partition("@")
    if not at:
        return name, []
    return name, _parse_sizes(sizes, text)


def _parse_sizes(text: str, workload: str) -> list[int]:
    words = text.split(",")
    are_sizes = all(word.isdecimal() and len(word) < 10 and int(word) > 0 for word in words)
    if not are_sizes:
        raise InvalidResourcesError(
            f"workload {workload!r}: after the @, write sizes, whole numbers of 1 or above, such as mlp@64,256"
        )
    return [int(word) for word in words]


def _show(run_set: RunSet, output: Path, *, as_json: bool) -> None:
    """Print the measurements to stdout, and the path of the record to stderr."""
    from ..record.run_set_file import new_name
    from ..record.summary import not_measured
    from .record import print_measured

    print_measured(run_set, output, as_json=as_json)
    # Everything below goes to stderr, so that stdout contains only the result, for example as JSON.
    redacted = new_name("redacted.json", output)
    export = shlex.join(
        ["tune-policies", "bench", "export", str(output), "--format", "json", "--redact", "--output", redacted]
    )
    print(
        f"wrote {output}. The file contains host names and the command. `{export}` omits both",
        file=sys.stderr,
    )
    for missing in not_measured(run_set):
        print_to_stderr(missing)


@app.command()
def packing(
    workload: Annotated[
        list[str] | None,
        typer.Argument(help="Name of a workload, or module:function. Append sizes with @, such as mlp@64."),
    ] = None,
    *,
    size: Annotated[int | None, typer.Option(min=1, help="Size of workloads without their own sizes.")] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Number of training steps (batches) of a trial: epochs times batches per epoch."),
    ] = None,
    trials_per_gpu: Annotated[
        list[int] | None, typer.Option(min=2, help="Number of concurrent trials on the GPU; may be repeated.")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Number of runs for each number of concurrent trials.")] = 3,
    cpus_per_trial: Annotated[
        float, typer.Option(min=0, help="CPUs per trial in the plan that uses the measured profile.")
    ] = 1,
    mps: Annotated[
        bool, typer.Option("--mps", help="Also measure concurrent trials under MPS, whose daemon must be running.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the record to this file.")] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure the trials per hour on one GPU, with one trial at a time and with concurrent trials."""
    from ..measuring.packing import Sweep, default_trainings, find_training, measure_throughput

    if steps is not None and not workload:
        raise InvalidResourcesError("--steps has no effect without a workload. Pass a workload, such as mlp@64")
    if size is not None:
        _check_size_option(workload or [])
    trainings = []
    for text in workload or ():
        name, own_sizes = _name_and_sizes(text)
        # Without any size, ``size`` is ``None``, so the training has its default size.
        sizes: Sequence[int | None] = own_sizes or [size]
        trainings += [find_training(name, wanted, steps) for wanted in sizes]
    trainings = trainings or default_trainings()
    sweep = Sweep(trainings, trials_per_gpu or [2, 4, 8, 16, 32], repetitions, cpus_per_trial, mps)
    record = measure_throughput(sweep, output, force=force)
    if json:
        print(record.to_json())
    else:
        from ..report.tables import print_throughput

        print_throughput(record)
