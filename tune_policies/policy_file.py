"""Reads a policy from a YAML or JSON file."""

from pathlib import Path

import yaml

from tune_policies.errors import InvalidResourcesError
from tune_policies.policy import ResourcePolicy, build_policy


def load_policy(path: str | Path) -> ResourcePolicy:
    """Read the policy that a YAML or JSON file describes; ``kind`` names its class.

    The file is data: YAML tags that would build Python objects are refused.

    Raises:
        InvalidResourcesError: The file cannot be read, is not YAML, or does not describe a policy.
    """
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidResourcesError(f"cannot read the policy file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidResourcesError(f"{path} is neither YAML nor JSON: {error}") from error
    try:
        return build_policy(data)
    except InvalidResourcesError as error:
        raise InvalidResourcesError(f"{path}: {error}") from error
