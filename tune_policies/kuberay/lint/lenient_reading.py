"""Reads a manifest with wrong fields, so that one mistake does not hide others.

The reader of :mod:`tune_policies.kuberay.reading` accepts only manifests without mistakes. This module replaces each
wrong field by the value that its author probably intended, or else by a placeholder that no rule reports.
"""

import copy
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.reading.cluster_yaml import is_cluster_yaml, read_cluster_yaml
from tune_policies.kuberay.reading.documents import clusters_in
from tune_policies.kuberay.reading.kuberay_models import WHOLE_NUMBER, ClusterInFile, FieldProblem
from tune_policies.kuberay.reading.kubernetes_quantities import intended_quantity

_MAX_ROUNDS: Final = 12
"""The maximum number of attempts. Each attempt repairs all problems that the reader reports at once."""

_TRUTH_VALUES: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

_UNREAD_POD: Final = {"spec": {"containers": [{"name": ""}]}}

_PLACEHOLDERS: Final[dict[str, Any]] = {
    "name": "",
    "groupName": "",
    "containers": [{"name": ""}],
    "spec": _UNREAD_POD["spec"],
    "template": _UNREAD_POD,
    "headGroupSpec": {"template": _UNREAD_POD},
}
"""The values that replace missing or wrong fields without a default, by field."""

_ITEM_PLACEHOLDERS: Final[dict[str, Any]] = {
    "containers": {"name": ""},
    "env": {"name": ""},
    "tolerations": {},
    "workerGroupSpecs": {"groupName": "", "template": _UNREAD_POD},
}
"""The values that replace a wrong item, by the name of the list. Without the item, the next ones would move up."""


class Readable(NamedTuple):
    """The part of a manifest that can be read.

    Attributes:
        manifest: The manifest with replaced fields.
        clusters: The clusters in it.
        omitted: The paths of the fields that were replaced by placeholders.
    """

    manifest: Document
    clusters: Sequence[ClusterInFile]
    omitted: frozenset[Path] = frozenset()

    def hides(self, path: Path) -> bool:
        """Return whether a finding at this path may be wrong because a part was omitted."""
        return any(_is_affected(path, part) for part in self.omitted)

    def omitted_by(self, path: Path) -> Path | None:
        """Return the part that was omitted because of the mistake at a path, or ``None``."""
        parts = [part for part in self.omitted if path[: len(part)] == part]
        return max(parts, key=len, default=None)


def _is_affected(path: Path, omitted: Path) -> bool:
    # The finding is inside the omitted part.
    if path[: len(omitted)] == omitted:
        return True
    # The finding is about a part that contains the omitted part. It may say that this part is missing.
    if path == omitted[: len(path)]:
        # A missing amount is reported at the container's resources.
        most_below = 2 if path[-1:] == ("resources",) else 1
        return len(omitted) - len(path) <= most_below
    # The numbers of replicas of a group are compared with each other.
    return path[:-1] == omitted[:-1] and str(omitted[-1]).endswith(("eplicas", "_workers", "OfHosts"))


def readable(manifest: Document, clusters: list[ClusterInFile], problems: Sequence[FieldProblem]) -> Readable:
    """Return the part of a manifest that can be read.

    Args:
        manifest: The manifest.
        clusters: The clusters that the reader found in it.
        problems: The problems that the reader found in it.
    """
    if clusters or not problems or not isinstance(manifest.data, dict):
        return Readable(manifest, clusters)
    # ``tried`` contains the fields that were replaced by their intended values. If such a value is wrong too, the next
    # attempt replaces it by a placeholder.
    repaired = manifest._replace(data=copy.deepcopy(manifest.data))
    omitted: set[Path] = set()
    tried: set[Path] = set()
    # A repair can reveal further problems, because the reader does not look into a part whose type is wrong.
    for _ in range(_MAX_ROUNDS):
        for problem in problems:
            path = _repair(repaired.data, problem.path, tried)
            if path is not None:
                omitted.add(path)
        clusters, problems = clusters_in(repaired)
        if clusters or not problems:
            return Readable(repaired, clusters, frozenset(omitted))
        if is_cluster_yaml(repaired.data) and read_cluster_yaml(repaired.data)[0] is not None:
            return Readable(repaired, (), frozenset(omitted))
    # The empty path is the beginning of all paths, so no rule reports anything.
    return Readable(manifest, (), frozenset({()}))


def _repair(data: Any, path: Path, tried: set[Path]) -> Path | None:
    """Replace the value at a path, and return the path of the placeholder (``None`` for an intended value)."""
    # Follow the path as far as it exists. If a part on the way is missing or has a wrong type, this part is replaced.
    parent, known = data, 0
    for key in path[:-1]:
        inner = _item(parent, key)
        if not isinstance(inner, dict | list):
            break
        parent, known = inner, known + 1
    path = path[: known + 1]
    if not path:
        return None
    last = path[-1]
    value = _item(parent, last)
    if path not in tried and value is not None:
        tried.add(path)
        intended = _intended(value, path)
        if intended is not None:
            parent[last] = intended
            return None
    _replace(parent, path)
    return path


def _item(parent: Any, key: str | int) -> Any:
    if isinstance(parent, dict):
        return parent.get(key)
    if isinstance(parent, list) and isinstance(key, int) and key < len(parent):
        return parent[key]
    return None


def _intended(value: object, path: Path) -> object:
    """Return the value that the author of a wrong value probably intended, or ``None`` if it is unknown."""
    if isinstance(value, str):
        if WHOLE_NUMBER.fullmatch(value):
            return int(value)
        if value.lower() in _TRUTH_VALUES:
            return _TRUTH_VALUES[value.lower()]
        if path[-2:-1] in (("limits",), ("requests",)):
            return intended_quantity(value)
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    return None


def _replace(parent: Any, path: Path) -> None:
    """Replace a value by the placeholder of its field or of its list, or remove it."""
    last, list_name = path[-1], "".join(map(str, path[-2:-1]))
    if isinstance(parent, list):
        if isinstance(last, int) and last < len(parent):
            parent[last] = copy.deepcopy(_ITEM_PLACEHOLDERS.get(list_name, {}))
    # In ``metadata``, the name is optional for the reader.
    elif last in _PLACEHOLDERS and path[-2:-1] != ("metadata",):
        parent[last] = copy.deepcopy(_PLACEHOLDERS[str(last)])
    else:
        parent.pop(last, None)
