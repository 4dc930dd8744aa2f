"""The design of a cluster as cluster YAML for Ray's own launcher (``ray up``).

After https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html. What it leaves out, Ray takes
from the defaults of the provider.
"""

from typing import Any

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.kuberay.design.catalog import NodeType
from tune_policies.kuberay.design.design_cluster import ClusterDesign
from tune_policies.kuberay.manifests.start_command import quoted
from tune_policies.kuberay.writing.block_yaml import Optional
from tune_policies.kuberay.writing.options import WriteOptions
from tune_policies.kuberay.writing.ray_cluster import check_group_names
from tune_policies.values.errors import InvalidResourcesError


def cluster_yaml(design: ClusterDesign, options: WriteOptions) -> tuple[dict[str, Any], Optional]:
    """Return the configuration of Ray's launcher, and what may be filled in.

    Raises:
        InvalidResourcesError: The launcher could not start it: a name comes twice, or nodes come several at once.
    """
    check_group_names(design, design.head.name)
    for group in design.groups:
        if group.num_hosts > 1:
            raise InvalidResourcesError(
                f"the group {group.node_type.name!r} has nodes that come {group.num_hosts} at once, which Ray's "
                "launcher does not do: write a manifest (format 'kuberay')"
            )
    optional: Optional = {
        ("head_node_type",): ("file_mounts: {~/code: .}  # the folder of your program, on every node",)
    }
    # Both make all nodes run the same Ray; an image has the packages, too.
    software: dict[str, Any] = {"docker": {"image": options.image, "container_name": "ray_container"}}
    if options.image is None:
        software = {"setup_commands": [f"pip install {quoted(f'ray[default,tune,train]=={options.ray_version}')}"]}
        optional["setup_commands", 0] = ("- pip install --requirement ~/code/requirements.txt",)
    config = {
        "cluster_name": design.name,
        "max_workers": sum(group.max_nodes for group in design.groups),
        "idle_timeout_minutes": design.idle_timeout_s / 60,
        "provider": options.provider,
        **software,
        "head_node_type": design.head.name,
        "available_node_types": {design.head.name: _head(design.head)}
        | {
            group.node_type.name: {
                "min_workers": group.min_nodes,
                "max_workers": group.max_nodes,
                "resources": _amounts(group.node_type),
                "labels": group.node_type.ray_labels,
                "node_config": group.node_type.node_config,
            }
            for group in design.groups
        },
    }
    return config, optional


def _head(head: NodeType) -> dict[str, Any]:
    # Without CPUs it takes no trials; memory is what Train's drivers hold.
    return {"max_workers": 0, "resources": {"CPU": 0, "memory": head.memory_bytes}, "node_config": head.node_config}


def _amounts(node_type: NodeType) -> dict[str, int]:
    amounts = {"CPU": node_type.cpus, "GPU": node_type.gpus, "memory": node_type.memory_bytes}
    for name, amount in node_type.custom.items():
        amounts[name] = int(amount)
    if node_type.accelerator_type is not None:
        amounts[ACCELERATOR_TYPE_PREFIX + node_type.accelerator_type] = 1
    return {name: amount for name, amount in amounts.items() if amount}
