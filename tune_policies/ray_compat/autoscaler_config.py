"""Asks Ray's autoscaler, without running it, how it reads a RayCluster.

That is private to Ray; there is no public way. This module alone calls it, so that a new Ray fails here. It is the same
in Ray 2.50 and 2.60. What Ray makes of a foreign text can be any error: each is made a ``ValueError``.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_GROUP_DEFAULTS: Final = {"replicas": 0, "minReplicas": 0, "maxReplicas": 2147483647, "numOfHosts": 1}
"""What KubeRay's RayCluster definition fills in where a worker group says nothing."""


def cluster_yaml_schema() -> Path | None:
    """Return where the JSON schema of ``ray up``'s files is; ``None``: there is no Ray, or none that has one.

    Ray checks a file by it, and documents the fields, not the schema. Imports no Ray. So since Ray 2.50.
    """
    spec = find_spec("ray")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "autoscaler" / "ray-schema.json"
    return file if file.is_file() else None


def read_ray_cluster(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the autoscaler's configuration of a RayCluster, in which KubeRay's defaults are filled in.

    Whether KubeRay starts an autoscaler at all, ``enableInTreeAutoscaling``, is not in it.

    Raises:
        ValueError: Ray cannot read it; the message is Ray's.
    """
    from tune_policies.ray_compat.version import needs_of_ray  # here, as the rest of this module imports no Ray

    with needs_of_ray("reading the node types of a RayCluster"):
        from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    with errors_of_ray_as_value_errors():
        metadata = {"namespace": "default", "name": "raycluster", **(manifest.get("metadata") or {})}
        spec = dict(manifest["spec"])
        spec["workerGroupSpecs"] = [{**_GROUP_DEFAULTS, **group} for group in spec.get("workerGroupSpecs") or ()]
        config: dict[str, Any] = _derive_autoscaling_config_from_ray_cr(
            {**manifest, "metadata": metadata, "spec": spec}
        )
    return config


@contextmanager
def errors_of_ray_as_value_errors() -> Iterator[None]:
    """Make a ``ValueError`` of whatever Ray raises at a foreign configuration."""
    try:
        yield
    except Exception as error:
        why = next(iter(str(error).splitlines()), "")
        raise ValueError(f"{type(error).__name__}: {why}") from error
