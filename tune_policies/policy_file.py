"""Reads a policy from a YAML or JSON file."""

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from tune_policies.errors import InvalidResourcesError
from tune_policies.gpu_memory_profile import GpuMemoryProfile
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policy import ResourcePolicy, build_policy

_POLICIES: Final = ("inner", "policies")
"""The fields in which a policy has others. What else it has may name anything."""


def load_policy(path: str | Path) -> ResourcePolicy:
    """Read the policy that a YAML or JSON file describes; ``kind`` names its class.

    The file is data: YAML tags that would build Python objects are refused. Where a policy takes a ``profile``, the
    name of a JSON file may stand for it, relative to the policy's file.

    Raises:
        InvalidResourcesError: The file cannot be read, is not YAML, or does not describe a policy.
    """
    text = _read(path, "policy")
    try:
        data = parse_text(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidResourcesError(f"{path} is neither YAML nor JSON: {error}") from error
    try:
        return build_policy(_with_profiles(data, Path(path).parent))
    except InvalidResourcesError as error:
        raise InvalidResourcesError(f"{path}: {error}") from error
    except RecursionError as error:
        raise InvalidResourcesError(f"{path} contains itself: a policy inside a policy must end somewhere") from error


def _read(path: str | Path, what: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not there, not text, or a name that no file can have
        raise InvalidResourcesError(f"cannot read the {what} file {path}: {error}") from error


def _with_profiles(data: object, folder: Path) -> object:
    """Return the data of a policy with each profile that is named by its file in place of the name."""
    if isinstance(data, list):
        return [_with_profiles(each, folder) for each in data]
    if not isinstance(data, dict):
        return data
    changed = {key: _with_profiles(value, folder) if key in _POLICIES else value for key, value in data.items()}
    if data.get("kind") == GpuMemoryPolicy.__name__ and isinstance(name := data.get("profile"), str):
        changed["profile"] = _profile(folder / name)
    return changed


def _profile(path: Path) -> GpuMemoryProfile:
    text = _read(path, "profile")
    try:
        return GpuMemoryProfile.from_dict(parse_text(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # of which InvalidResourcesError is one
        raise InvalidResourcesError(f"{path} is no profile: {error}") from error


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


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that comes twice, of which YAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} comes twice", node.start_mark)
        return super().construct_mapping(node, deep)
