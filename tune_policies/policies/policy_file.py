"""Reads policies, decisions and runtime environments from YAML and JSON files."""

from pathlib import Path
from typing import Any, Final

from tune_policies.files.plain_data import format_of
from tune_policies.files.reading import read_data, read_value, wrong_file
from tune_policies.plan.benchmark_decision import Decision
from tune_policies.plan.gpu_memory_profile import GpuMemoryProfile
from tune_policies.policies.benchmarked import BenchmarkedPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.policy import ResourcePolicy, build_policy
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import Value

_POLICIES: Final = ("inner", "start", "policies", "gpu", "cpu", "default")
"""The names of fields that contain other policies."""

IN_FILES: Final[dict[tuple[str, str], tuple[str, type[Value]]]] = {
    (GpuMemoryPolicy.__name__, "profile"): ("profile", GpuMemoryProfile),
    (BenchmarkedPolicy.__name__, "decision"): ("decision", Decision),
}
"""The fields that may contain a file name instead of a value.

Each ``kind`` and field name maps to a description of the file's content and the class of the value.
"""


def load_policy(path: str | Path) -> ResourcePolicy:
    """Read a policy from a YAML or JSON file.

    In the file, ``kind`` is the name of the policy's class. YAML tags that would create Python objects are rejected.
    The value of ``profile`` or ``decision`` may be the name of a JSON file, relative to the policy file.

    Raises:
        InvalidResourcesError: The file cannot be read, is not YAML, or does not contain a policy.
    """
    data = read_data(path, what="policy file")
    try:
        return build_policy(_with_files(data, Path(path).parent))
    except InvalidResourcesError as error:
        found = format_of(data)
        if found is not None and found.name != "policy":
            raise wrong_file(path, "policy", data, error) from error
        raise InvalidResourcesError(f"{path}: {error}") from error


def load_decision(path: str | Path) -> Decision:
    """Read a decision for ``BenchmarkedPolicy`` from the output of ``tune-policies bench decide --output``.

    Raises:
        InvalidResourcesError: The file cannot be read, or does not contain a decision.
    """
    return read_value(path, Decision, "decision")


def load_runtime_env(path: str | Path) -> dict[str, Any]:
    """Read a Ray runtime environment from a YAML or JSON file in the format of ``ray job submit --runtime-env``.

    Raises:
        InvalidResourcesError: The file cannot be read, or does not contain a mapping.
    """
    data = read_data(path, what="runtime environment")
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise InvalidResourcesError(f"{path} is not a runtime environment. Write fields such as working_dir and pip")
    return data


def _with_files(data: object, folder: Path) -> object:
    """Return the data of a policy with each file name replaced by the content of the file."""
    if isinstance(data, list):
        return [_with_files(item, folder) for item in data]
    if not isinstance(data, dict):
        return data
    changed = {key: _with_files(value, folder) if key in _POLICIES else value for key, value in data.items()}
    by_value = data.get("policies")
    if isinstance(by_value, dict):  # its keys are values of a config, and not the names of fields
        changed["policies"] = {key: _with_files(value, folder) for key, value in by_value.items()}
    for (kind, field), (what, cls) in IN_FILES.items():
        name = data.get(field)
        if data.get("kind") == kind and isinstance(name, str):
            changed[field] = read_value(folder / name, cls, what)
    return changed
