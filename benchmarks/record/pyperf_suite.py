"""What was measured as pyperf's benchmarks, by pyperf's own API, so that its commands read it.

A benchmark is an arm in a phase, a run of it is a process, and a value is the seconds of one step. What pyperf has no
place for (order, failures, losses, devices that are missing) is in the run set only.
"""

import io
import json
from collections.abc import Callable, Iterator
from datetime import UTC
from typing import Any

from tune_policies.errors import InvalidResourcesError

from .environment import Environment
from .run_set import Arm, Block, Phase, ProcessRun, RunSet

Namer = Callable[[Arm, Phase], str]


def full_name(arm: Arm, phase: Phase) -> str:
    """Return ``"mlp[64] gpu compute"``."""
    return f"{arm.workload}[{arm.size}] {arm.device}{' (control)' if arm.is_control else ''} {phase}"


def name_without_device(arm: Arm, phase: Phase) -> str:
    """Return ``"mlp[64] compute"``: pyperf compares benchmarks of one name in two files."""
    return f"{arm.workload}[{arm.size}] {phase}"


def pyperf_data(run_set: RunSet, name: Namer = full_name) -> dict[str, Any]:
    """Return the content of pyperf's file as plain data; each arm and phase needs a name of its own.

    Raises:
        InvalidResourcesError: pyperf is not installed.
    """
    try:
        import pyperf
    except ImportError as error:
        raise InvalidResourcesError(
            "what is measured is written in pyperf's format: pip install 'tune-policies[bench]'"
        ) from error
    benchmarks = [pyperf.Benchmark(runs) for runs in _runs_by_benchmark(run_set, name)]
    if not benchmarks:  # of which pyperf makes no suite, and reads none
        return {"version": "1.0", "benchmarks": []}
    file = io.StringIO()
    pyperf.BenchmarkSuite(benchmarks).dump(file)
    data: dict[str, Any] = json.loads(file.getvalue())
    return data


def _runs_by_benchmark(run_set: RunSet, name: Namer) -> Iterator[list[Any]]:
    machine = _machine(run_set.environment)
    for arm in run_set.sorted_arms:
        processes = run_set.of(arm)
        for phase in Phase:
            about = {"name": name(arm, phase), "phase": phase.value, **machine}
            runs = [_run(each, phase, about) for each in processes if each.times_s(phase)]
            if runs:
                yield runs


def _run(process: ProcessRun, phase: Phase, about: dict[str, Any]) -> Any:
    import pyperf

    blocks = [block for block in process.blocks if block.phase is phase]
    warmups = [(block.num_steps, block.seconds_per_step) for block in blocks if block.is_warmup]
    metadata = {**about, **_about(process), "unit": "second", "loops": _loops(blocks)}
    metadata["duration"] = sum(block.seconds for block in blocks) or process.first_epoch_s
    return pyperf.Run(process.times_s(phase), warmups, metadata=metadata, collect_metadata=False)


def _loops(blocks: list[Block]) -> int:
    # pyperf has one number for all values of a run, by which it warns of values that are too short to be told.
    return min((block.num_steps for block in blocks if not block.is_warmup), default=1)


def _about(process: ProcessRun) -> dict[str, Any]:
    arm = process.arm
    about = {
        "workload": arm.workload,
        "size": arm.size,
        "device": arm.device,
        "date": process.started_at.astimezone(UTC).isoformat(sep=" "),
        "round": process.round,
        # pyperf's own "hostname" must be the same in all runs of a benchmark, which a cluster does not promise.
        "node": process.node,
        "pid": process.pid,
        "mem_max_rss": process.peak_host_bytes,
        "num_threads": process.num_threads,
        "dtype": process.dtype,
    }
    return _known(about)


def _machine(environment: Environment) -> dict[str, Any]:
    about = {
        "cpu_model_name": environment.cpu_model,
        "cpu_count": environment.num_cpus,
        "gpus": ", ".join(gpu.name for gpu in environment.gpus),
        "platform": environment.platform,
        "python_version": environment.python,
        "commit_id": environment.commit,
        **{f"{name}_version": version for name, version in environment.versions.items()},
    }
    return _known(about)


def _known(metadata: dict[str, Any]) -> dict[str, Any]:
    """Leave out what pyperf refuses: what is empty. It also wants texts of one line."""
    lines = {name: " ".join(value.split()) if isinstance(value, str) else value for name, value in metadata.items()}
    return {name: value for name, value in lines.items() if value not in ("", None)}
