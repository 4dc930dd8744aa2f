"""What several rules ask of a cluster's specification."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.documents import Path
from tune_policies.manifests.kuberay_models import RayClusterSpec

AUTOSCALER_V2 = "RAY_enable_autoscaler_v2"
V2_BY_DEFAULT = (2, 47)
"""From this Ray on the autoscaler is v2 where nothing is said; see the field ``version`` in KubeRay's API reference."""

_LABEL_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_autoscaling(spec: RayClusterSpec) -> bool:
    """Return whether the operator starts an autoscaler."""
    return bool(spec.enableInTreeAutoscaling)


def is_v2(spec: RayClusterSpec) -> bool:
    """Return whether the operator takes the autoscaler for v2: what Ray's version makes of it does not count there."""
    return is_autoscaling(spec) and spec.autoscalerOptions.version == "v2"


def extra(part: BaseModel, name: str) -> Any:
    """Return a field that the models do not know; ``None``: it is not there."""
    return (part.model_extra or {}).get(name)


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value where it is a mapping, else an empty one: that it should be one another rule says."""
    return value if isinstance(value, Mapping) else {}


def version_of(text: str | None) -> tuple[int, ...] | None:
    """Return the numbers with which a version begins, such as ``(2, 47, 1)``; ``None``: there are none."""
    found = re.match(r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", text or "")
    return tuple(int(part) for part in found.groups() if part is not None) if found else None


def annotations_of(cluster: ClusterInFile) -> Mapping[str, Any]:
    """Return the annotations that the operator reads for the cluster."""
    return cluster.metadata.annotations


def at(value: object, path: Path) -> Any:
    """Return what stands at a path of plain data; ``None``: nothing."""
    for part in path:
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def numbered(items: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the mappings of a list with their places."""
    for number, each in enumerate(items if isinstance(items, list) else ()):
        if isinstance(each, Mapping):
            yield number, each


def is_label_value(value: str) -> bool:
    """Return whether Kubernetes takes a label's value."""
    return value == "" or _LABEL_PART.fullmatch(value) is not None


def is_label_key(key: str) -> bool:
    """Return whether Kubernetes takes a label's key."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or _LABEL_PREFIX.fullmatch(prefix) is None):
        return False
    return _LABEL_PART.fullmatch(name) is not None
