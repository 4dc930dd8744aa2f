"""A plan as cluster YAML for Ray's own launcher (``ray up``).

After https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html. What it leaves out, Ray takes
from the defaults of the provider.
"""

from typing import Any, Final

from tune_policies.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.clusters.catalog import NodeType
from tune_policies.clusters.cluster_plan import ClusterPlan
from tune_policies.clusters.device_plugins import whole_amount
from tune_policies.errors import InvalidResourcesError
from tune_policies.manifests.writing.options import WriteOptions
from tune_policies.manifests.writing.ray_cluster import check_group_names, ray_labels

_HEAD: Final = "head"


def cluster_yaml(plan: ClusterPlan, options: WriteOptions) -> dict[str, Any]:
    """Return the configuration of Ray's launcher.

    Raises:
        InvalidResourcesError: The launcher could not start it: a name comes twice, or an amount is not whole.
    """
    check_group_names(plan, _HEAD)
    return {
        "cluster_name": plan.name,
        "max_workers": sum(group.max_nodes for group in plan.groups),
        "idle_timeout_minutes": plan.idle_timeout_s / 60,
        "provider": options.provider,
        **_software(options),
        "head_node_type": _HEAD,
        "available_node_types": {_HEAD: _head(plan.head)}
        | {
            group.node_type.name: {
                "min_workers": group.min_nodes,
                "max_workers": group.max_nodes,
                "resources": _amounts(group.node_type),
                "labels": ray_labels(group.node_type),
                "node_config": group.node_type.node_config,
            }
            for group in plan.groups
            if _comes_alone(group.node_type.name, group.num_hosts)
        },
    }


def _comes_alone(name: str, num_hosts: int) -> bool:
    if num_hosts > 1:
        raise InvalidResourcesError(
            f"the group {name!r} has nodes that come {num_hosts} at once, which Ray's launcher cannot do: write it for "
            "KubeRay"
        )
    return True


def _software(options: WriteOptions) -> dict[str, Any]:
    """Return what makes all nodes run the same Ray."""
    if options.image is None:
        return {"setup_commands": [f'pip install "ray[default,tune,train]=={options.ray_version}"']}
    return {"docker": {"image": options.image, "container_name": "ray_container"}}


def _head(head: NodeType) -> dict[str, Any]:
    no_gpus = {"GPU": 0} if head.gpus else {}
    return {"max_workers": 0, "resources": {"CPU": 0} | no_gpus, "node_config": head.node_config}


def _amounts(node_type: NodeType) -> dict[str, int]:
    amounts = {"CPU": node_type.cpus, "GPU": node_type.gpus, "memory": node_type.memory_bytes}
    for name, amount in node_type.custom.items():
        amounts[name] = whole_amount(amount, name=f"node type {node_type.name!r}: {name}")
    if node_type.accelerator_type is not None:
        amounts[ACCELERATOR_TYPE_PREFIX + node_type.accelerator_type] = 1
    return {name: amount for name, amount in amounts.items() if amount}
