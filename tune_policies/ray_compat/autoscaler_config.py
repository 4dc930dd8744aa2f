"""Asks Ray's autoscaler, without running it, how it reads a RayCluster and what it would launch.

Both are private to Ray; there is no public way. This module alone calls them, so that a new Ray fails here. They
are the same in Ray 2.50 and 2.60. What Ray makes of a foreign text can be any error: each is made a ``ValueError``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tune_policies.cluster.labels import conditions_of

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
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    with _as_value_errors():
        metadata = {"namespace": "default", "name": "raycluster", **(manifest.get("metadata") or {})}
        spec = dict(manifest["spec"])
        spec["workerGroupSpecs"] = [{**_GROUP_DEFAULTS, **group} for group in spec.get("workerGroupSpecs") or ()]
        config: dict[str, Any] = _derive_autoscaling_config_from_ray_cr(
            {**manifest, "metadata": metadata, "spec": spec}
        )
    return config


def nodes_launched(
    config: Mapping[str, Any],
    bundles: Sequence[Mapping[str, float]],
    label_selectors: Sequence[Mapping[str, str]] = (),
) -> dict[str, int]:
    """Return how many nodes of each type autoscaler v2 would launch for bundles that are asked for at once.

    It begins with the head node alone. Those nodes are among them that are always there (``min_workers``); they are
    all there is, where nodes for all bundles cannot be had, as v2 launches for the whole of a request or for none.

    Args:
        config: The autoscaler's configuration: ``available_node_types``, ``head_node_type``, ``max_workers``.
        bundles: Amounts by Ray's resource.
        label_selectors: Of each bundle; empty: none has one.

    Raises:
        ValueError: Ray cannot read the configuration.
    """
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.core.generated.autoscaler_pb2 import ClusterResourceConstraint

    selectors = label_selectors or [{}] * len(bundles)
    with _as_value_errors():
        types = dict(config["available_node_types"])
        requests = [_request(*each) for each in zip(bundles, selectors, strict=True)]
        request = SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs={name: _node_type(name, types[name], config) for name in types},
            # To Ray the head is one of the nodes, but none of the workers.
            max_num_nodes=config["max_workers"] + 1,
            cluster_resource_constraints=[ClusterResourceConstraint(resource_requests=requests)] if requests else [],
            current_instances=[_head(config["head_node_type"])],
        )
        launches = ResourceDemandScheduler().schedule(request).to_launch
        return {each.instance_type: each.count for each in launches}


def _node_type(name: str, node_type: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Return the type as Ray's ``AutoscalingConfig`` would, which asks for a cloud's credentials too."""
    from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig

    is_head = name == config["head_node_type"]
    optional = {"idle_timeout_s", "priority"} & {field.name for field in fields(NodeTypeConfig)} & node_type.keys()
    return NodeTypeConfig(
        name=name,
        min_worker_nodes=node_type.get("min_workers", 0),
        max_worker_nodes=1 if is_head else node_type.get("max_workers", config["max_workers"]),
        resources=dict(node_type.get("resources") or {}),
        labels=dict(node_type.get("labels") or {}),
        **{key: node_type[key] for key in optional},
    )


def _head(node_type: str) -> Any:
    """Return the head as Ray keeps a node that starts, so that its resources are those of its type."""
    from ray.autoscaler.v2.schema import AutoscalerInstance
    from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

    instance = Instance(
        instance_id="head", instance_type=node_type, status=Instance.ALLOCATED, node_kind=NodeKind.Value("HEAD")
    )
    return AutoscalerInstance(im_instance=instance)


def _request(bundle: Mapping[str, float], label_selector: Mapping[str, str]) -> Any:
    from ray.autoscaler.v2.utils import ResourceRequestUtil
    from ray.core.generated.autoscaler_pb2 import ResourceRequestByCount
    from ray.core.generated.common_pb2 import LabelSelectorOperator

    operators = {
        is_excluded: LabelSelectorOperator.Value(f"LABEL_OPERATOR_{'NOT_IN' if is_excluded else 'IN'}")
        for is_excluded in (False, True)
    }
    constraints = [
        (key, operators[is_excluded], sorted(values)) for key, values, is_excluded in conditions_of(label_selector)
    ]
    request = ResourceRequestUtil.make(dict(bundle), label_selectors=[constraints] if constraints else None)
    return ResourceRequestByCount(request=request, count=1)


@contextmanager
def _as_value_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        why = next(iter(str(error).splitlines()), "")
        raise ValueError(f"{type(error).__name__}: {why}") from error
