"""What writes files that are replaced, each with texts of its own that may be found in them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Final, NamedTuple

from pyarrow.fs import LocalFileSystem

from tests import measured_runs
from tune_policies import load_decision
from tune_policies.benchmarks.record.run_set import RunSet
from tune_policies.benchmarks.record.run_set_file import read_run_set, write_run_set
from tune_policies.files.plain_data import parse_json
from tune_policies.files.writing import put_text, replace_file, write_new
from tune_policies.kuberay.lint.fixes import fixed_file
from tune_policies.trainers.gpu_memory.overhead import Overheads, load_overheads, save_overheads
from tune_policies.tune.usage.gpu_memory_usage import GPU_MEMORY_KEY, GpuMemoryUsage, worker_file
from tune_policies.tune.usage.policy_callback import usage_writer
from tune_policies.tune.usage.resource_usage import USAGE_FILE, PlanInUse, ResourceUsage

from .sound_files import sound_files

_a_run: Callable[..., RunSet] = measured_runs.a_run

NUM_VERSIONS: Final = 4


class Writer(NamedTuple):
    """One way in which a file is written.

    Attributes:
        name: What it writes.
        file: The file's name.
        write: Writes one of the versions into a folder, by its number.
        check: Reads the file; raises where it is not whole.
    """

    name: str
    file: str
    write: Callable[[Path, int], None]
    check: Callable[[Path], object]


def _write_run_set(folder: Path, number: int) -> None:
    write_run_set(_a_run(sizes=(16,), rounds=5 * (number + 1)), folder / "run.json")


def _write_usage(folder: Path, number: int) -> None:
    usage = GpuMemoryUsage(pid=1, warnings=("x" * 5000 * number,))
    text = json.dumps({GPU_MEMORY_KEY: usage.model_dump(mode="json")})
    put_text(LocalFileSystem(), str(folder / worker_file(0, 1)), text)


def _write_resource_usage(folder: Path, number: int) -> None:
    plan = PlanInUse(at_s=0, why="", text="x" * 5000 * number)
    storage = SimpleNamespace(storage_filesystem=LocalFileSystem(), experiment_fs_path=str(folder))
    usage_writer(storage, ResourceUsage(plans=(plan,)).to_json())()


def _write_overheads(folder: Path, number: int) -> None:
    os.environ["TUNE_POLICIES_CACHE"] = str(folder)
    fields = {"framework": "torch", "overhead_bytes": 1, "measured_on": "2026-07-01", "how": "process"}
    measured = {"gpu_model": f"A{number}" * 1000, "version": "2.13.0", **fields}
    save_overheads(Overheads.from_dict({"measured": [measured]}))


def _check_overheads(path: Path) -> None:
    os.environ["TUNE_POLICIES_CACHE"] = str(path.parent)
    if not load_overheads().measured:
        raise ValueError("nothing is left of it")


def _fix(folder: Path, number: int) -> None:
    path = folder / "demo.yaml"
    replace_file(path, sound_files()["manifest"].text + "# a comment\n" * number)
    fixed_file(path, unsafe=True).write()


def _check_manifest(path: Path) -> None:
    text = path.read_text()
    end = text[text.index("resources: {limits: {cpu: 500m") :] if "cpu: 500m" in text else text
    if not text.startswith("# A cluster.\n") or "nvidia.com/gpu: 1}}" not in end:
        raise ValueError("a part of it is missing")


def _write_cluster(folder: Path, number: int) -> None:
    path, is_new = folder / "cluster.yaml", number % 2 == 0
    if is_new:
        path.unlink(missing_ok=True)
    write_new(path, sound_files()["manifest"].text + "# a comment\n" * number, force=not is_new)


def _write_decision(folder: Path, number: int) -> None:
    write_new(folder / "decision.json", sound_files()["decision"].text + " " * 5000 * number, force=True)


def writers() -> tuple[Writer, ...]:
    """Return all ways in which files are written."""
    return (
        Writer("record of a run of the benchmarks", "run.json", _write_run_set, read_run_set),
        Writer("GPU memory of a worker", worker_file(0, 1), _write_usage, lambda path: parse_json(path.read_bytes())),
        Writer(
            "resource usage", USAGE_FILE, _write_resource_usage, lambda path: ResourceUsage.from_json(path.read_bytes())
        ),
        Writer("overheads", "gpu-overheads.json", _write_overheads, _check_overheads),
        Writer("lint --fix", "demo.yaml", _fix, _check_manifest),
        Writer("cluster --output", "cluster.yaml", _write_cluster, _check_manifest),
        Writer("decision", "decision.json", _write_decision, load_decision),
    )
