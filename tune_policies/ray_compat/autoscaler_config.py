"""Converts a RayCluster to the configuration of Ray's autoscaler.

Ray has only a private function for this. The function is the same in Ray 2.50 and 2.60.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

_GROUP_DEFAULTS: Final = {"replicas": 0, "minReplicas": 0, "maxReplicas": 2147483647, "numOfHosts": 1}
"""The defaults of a worker group in KubeRay's definition of a RayCluster."""


def read_ray_cluster(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the autoscaler configuration of a RayCluster, with KubeRay's defaults for missing fields.

    The configuration does not show whether KubeRay starts an autoscaler (``enableInTreeAutoscaling``).

    Raises:
        ValueError: Ray cannot read the manifest. The message contains Ray's error.
    """
    from tune_policies.ray_compat.version import needs_of_ray  # the rest of this module does not import Ray

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
    """Convert any error in the block to a ``ValueError``."""
    try:
        yield
    except Exception as error:
        why = next(iter(str(error).splitlines()), "")
        raise ValueError(f"{type(error).__name__}: {why}") from error
