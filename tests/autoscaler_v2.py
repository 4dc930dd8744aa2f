"""Computes the nodes that Ray's autoscaler v2 would launch, using its private scheduler in Ray 2.50 to 2.60."""

from dataclasses import fields

from tune_policies.cluster.labels import conditions_of


def nodes_launched(config, bundles, label_selectors=()):
    """Return the number of nodes of each type that autoscaler v2 would launch if only the head node runs.

    The result includes the nodes of ``min_workers``. If not all bundles fit, the result is only the nodes of
    ``min_workers``, because v2 does not launch nodes for a part of a request.

    Args:
        config: The autoscaler's configuration: ``available_node_types``, ``head_node_type``, ``max_workers``.
        bundles: The requested bundles, each as amounts by Ray's resource names.
        label_selectors: The label selector of each bundle. By default, bundles have no label selectors.
    """
    from ray.core.generated.autoscaler_pb2 import ClusterResourceConstraint

    selectors = label_selectors or [{}] * len(bundles)
    requests = [_request(*each) for each in zip(bundles, selectors, strict=True)]
    constraints = [ClusterResourceConstraint(resource_requests=requests)] if requests else []
    return _launches(config, cluster_resource_constraints=constraints)


def nodes_launched_for_groups(config, groups):
    """Return the number of nodes of each type that autoscaler v2 would launch for pending placement groups.

    Args:
        config: As in ``nodes_launched``.
        groups: The placement groups, each as a list of bundles with ``resources`` and ``label_selector``.
    """
    from ray.core.generated.autoscaler_pb2 import GangResourceRequest

    gangs = [GangResourceRequest(requests=[_request(*bundle).request for bundle in group]) for group in groups]
    return _launches(config, gang_resource_requests=gangs)


def nodes_launched_by_v1(config, groups):
    """Return the number of nodes of each type that autoscaler v1 would launch for pending placement groups."""
    from ray.autoscaler._private.node_provider_availability_tracker import NodeAvailabilitySummary
    from ray.autoscaler._private.resource_demand_scheduler import ResourceDemandScheduler
    from ray.autoscaler.tags import TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE
    from ray.core.generated.common_pb2 import PlacementStrategy
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    class OnlyHead:
        """The part of a node provider that the scheduler calls, for a cluster with only the head node."""

        def node_tags(self, node_id):
            return {TAG_RAY_NODE_KIND: "head", TAG_RAY_USER_NODE_TYPE: config["head_node_type"]}

        def internal_ip(self, node_id):
            return "head"

    types, head = config["available_node_types"], config["head_node_type"]
    scheduler = ResourceDemandScheduler(OnlyHead(), types, config["max_workers"], head, upscaling_speed=1000)
    free = {"head": dict(types[head].get("resources") or {})}
    pending = []
    for group in groups:
        data = PlacementGroupTableData(strategy=PlacementStrategy.PACK)
        for bundle in group:
            data.bundles.add().unit_resources.update(bundle.resources)
        pending.append(data)
    to_launch, _ = scheduler.get_nodes_to_launch(["head"], {}, [], free, pending, free, [], NodeAvailabilitySummary({}))
    return dict(to_launch)


def _launches(config, **demand):
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest

    types = dict(config["available_node_types"])
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs={name: _node_type(name, types[name], config) for name in types},
        # `max_num_nodes` includes the head node, but `max_workers` does not.
        max_num_nodes=config["max_workers"] + 1,
        current_instances=[_head(config["head_node_type"])],
        **demand,
    )
    launches = ResourceDemandScheduler().schedule(request).to_launch
    return {each.instance_type: each.count for each in launches}


def _node_type(name, node_type, config):
    """Return the node type as in Ray's ``AutoscalingConfig``, which is not used because it needs cloud credentials."""
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


def _head(node_type):
    """Return the head node as an allocated instance of ``node_type``."""
    from ray.autoscaler.v2.schema import AutoscalerInstance
    from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

    instance = Instance(
        instance_id="head", instance_type=node_type, status=Instance.ALLOCATED, node_kind=NodeKind.Value("HEAD")
    )
    return AutoscalerInstance(im_instance=instance)


def _request(bundle, label_selector):
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
