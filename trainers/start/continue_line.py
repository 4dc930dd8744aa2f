"""The line with which a user continues a run of Tune after Ctrl-C. This module does no I/O."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tune_policies.values.as_code import as_code


def line_for_run(trainable: Any, policy: Any, arguments: Mapping[str, Any], experiment_path: str) -> str:
    """Return the call of ``run`` that continues a run.

    Args:
        trainable: The trainable of the run.
        policy: The policy or plan that was passed, or ``None``.
        arguments: The other arguments of ``run``.
        experiment_path: The folder of the run.
    """
    parts = [_name_of(trainable)]
    if policy is not None:
        parts.append(_policy_text(policy))
    folder = Path(experiment_path)
    # A bucket has another path in the results than in the arguments.
    storage = arguments.get("storage_path") or str(folder.parent)
    parts += [f"name={as_code(folder.name)}", f"storage_path={as_code(str(storage))}", 'resume="AUTO"']
    others = arguments.keys() - {"name", "storage_path", "resume"}
    if not others:
        return f"run({', '.join(parts)})"
    return f"run({', '.join(parts)}, …), where … stands for the other arguments, which stay the same"


def line_for_tuner(trainable: Any, experiment_path: str) -> str:
    """Return the call that continues the run of a ``Tuner``."""
    return f"tune.Tuner.restore({as_code(experiment_path)}, {_name_of(trainable)}).fit()"


def _name_of(trainable: Any) -> str:
    if isinstance(trainable, str):
        return as_code(trainable)
    return getattr(trainable, "__name__", "trainable")


def _policy_text(policy: Any) -> str:
    text = repr(policy)
    if len(text) > 100 or "\n" in text:
        return "policy"
    return text
