"""Asks Ray's autoscaler, without running it, how it reads a RayCluster and what it would launch.

Both are private to Ray; there is no public way. This module alone calls them, so that a new Ray fails here.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def read_ray_cluster(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the autoscaler's configuration of a RayCluster, in which KubeRay's defaults are filled in.

    Raises:
        ValueError: Ray cannot read it; the message is Ray's.
    """
    raise NotImplementedError


def nodes_launched(config: Mapping[str, Any], bundles: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Return how many nodes of each type autoscaler v2 would launch for bundles that are asked for at once.

    Args:
        config: The autoscaler's configuration: ``available_node_types``, ``max_workers``.
        bundles: Amounts by Ray's resource.

    Raises:
        ValueError: Ray cannot read the configuration.
    """
    raise NotImplementedError
