"""Reads a policy, a decision, a node catalogue, or a cluster to plan for, from a YAML or JSON file."""

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from tune_policies.capacity import ClusterCapacity
from tune_policies.clusters.catalog import NodeCatalog
from tune_policies.decision import Decision
from tune_policies.errors import InvalidResourcesError
from tune_policies.gpu_memory_profile import GpuMemoryProfile
from tune_policies.policies.benchmarked import BenchmarkedPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policy import ResourcePolicy, build_policy
from tune_policies.values import Value

_ValueT = TypeVar("_ValueT", bound=Value)

_POLICIES: Final = ("inner", "policies", "gpu", "cpu")
"""The fields in which a policy has others. What else it has may name anything."""

_IN_FILES: Final[dict[tuple[str, str], tuple[str, type[Value]]]] = {
    (GpuMemoryPolicy.__name__, "profile"): ("profile", GpuMemoryProfile),
    (BenchmarkedPolicy.__name__, "decision"): ("decision", Decision),
}
"""The fields, by kind of policy and name, that a file may hold: what it is called, and its class."""


def load_policy(path: str | Path) -> ResourcePolicy:
    """Read the policy that a YAML or JSON file describes; ``kind`` names its class.

    The file is data: YAML tags that would build Python objects are refused. Where a policy takes a ``profile`` or a
    ``decision``, the name of a JSON file may stand for it, relative to the policy's file.

    Raises:
        InvalidResourcesError: The file cannot be read, is not YAML, or does not describe a policy.
    """
    text = _read(path, "policy")
    try:
        data = parse_text(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidResourcesError(f"{path} is neither YAML nor JSON: {why_unread(error)}") from error
    try:
        return build_policy(_with_files(data, Path(path).parent))
    except InvalidResourcesError as error:
        raise InvalidResourcesError(f"{path}: {error}") from error
    except RecursionError as error:
        raise InvalidResourcesError(f"{path} contains itself: a policy inside a policy must end somewhere") from error


def load_decision(path: str | Path) -> Decision:
    """Read what ``python -m benchmarks decide --output`` has written, for ``BenchmarkedPolicy``.

    Raises:
        InvalidResourcesError: The file cannot be read, or holds no decision.
    """
    return _value_in(Path(path), "decision", Decision)


def load_catalog(path: str | Path) -> NodeCatalog:
    """Read a node catalogue, which somebody has written by hand, as YAML or JSON. Prices may be missing.

    Raises:
        InvalidResourcesError: The file cannot be read, or is no catalogue.
    """
    return _value_in(Path(path), "node catalogue", NodeCatalog)


def load_capacity(path: str | Path) -> ClusterCapacity:
    """Read a cluster that ``tune-policies probe --json`` has written, or somebody by hand, as JSON or YAML.

    Raises:
        InvalidResourcesError: The file cannot be read, or does not describe a cluster.
    """
    text = _read(path, "capacity")
    try:
        # One written by hand may be YAML, which knows dates.
        return ClusterCapacity.from_json(json.dumps(parse_text(text), default=str))
    except (InvalidResourcesError, yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise InvalidResourcesError(
            f"{path} is not what `tune-policies probe --json` writes: {why_unread(error)}"
        ) from error


def _read(path: str | Path, what: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not there, not text, or a name that no file can have
        raise InvalidResourcesError(f"cannot read the {what} file {path}: {error}") from error


def _with_files(data: object, folder: Path) -> object:
    """Return the data of a policy with each value that is named by its file in place of the name."""
    if isinstance(data, list):
        return [_with_files(each, folder) for each in data]
    if not isinstance(data, dict):
        return data
    changed = {key: _with_files(value, folder) if key in _POLICIES else value for key, value in data.items()}
    for (kind, field), (what, cls) in _IN_FILES.items():
        if data.get("kind") == kind and isinstance(name := data.get(field), str):
            changed[field] = _value_in(folder / name, what, cls)
    return changed


def _value_in(path: Path, what: str, cls: type[_ValueT]) -> _ValueT:
    text = _read(path, what)
    try:
        # As JSON, in which a day may be a text; YAML has read it as a date.
        return cls.from_json(json.dumps(parse_text(text), default=str))
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:  # of which InvalidResourcesError is one
        raise InvalidResourcesError(f"{path} is no {what}: {why_unread(error)}") from error


def parse_text(text: str) -> object:
    """Return the data that a text holds as JSON, or else as YAML.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: It is neither.
    """
    try:
        # JSON first: YAML 1.1 refuses its tabs, and reads 1e1 as a text.
        return json.loads(text)
    except ValueError:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - it is a SafeLoader


def why_unread(error: Exception) -> str:
    """Return what is wrong with a text, and where, but not the text: it may be of another file than was meant."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error)
    place = error.problem_mark or error.context_mark
    where = f"line {place.line + 1}, column {place.column + 1}: " if place else ""
    return where + ", ".join(part for part in (error.context, error.problem) if part)


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that comes twice, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} comes twice", node.start_mark)
        return super().construct_mapping(node, deep)
