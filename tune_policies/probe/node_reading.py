"""Reads nodes at once, each by a task pinned to it."""

import time
from collections.abc import Iterable

import ray
from pydantic import JsonValue
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies.cluster.capacity import NodeCapacity
from tune_policies.probe import node_facts, nvml
from tune_policies.ray_compat.connection import sent_by_value

Facts = dict[str, JsonValue]
"""What ``node_facts.read_node`` returns."""


def read_nodes(
    nodes: Iterable[NodeCapacity], *, session: str | None, deadline: float
) -> tuple[dict[str, Facts], dict[str, str]]:
    """Return what was read by node id, and of the other nodes why nothing was.

    Args:
        nodes: The nodes to read, the GPUs of those that have some.
        session: The cluster whose autoscaler is looked for at its head; ``None``: it is not.
        deadline: When to stop waiting, by ``time.monotonic``.
    """
    with sent_by_value(nvml, node_facts):  # so that a node needs nothing but Ray
        read = ray.remote(num_cpus=0, max_retries=0)(node_facts.read_node)
        tasks = {
            read.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False)).remote(
                with_gpus=node.resources.gpus > 0, session=session if node.is_head else None
            ): node.node_id
            for node in nodes
        }
    found: dict[str, Facts] = {}
    failures: dict[str, str] = {}
    if not tasks:
        return found, failures
    ready, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=max(0.0, deadline - time.monotonic()))
    for task in ready:
        try:
            found[tasks[task]] = ray.get(task)
        except RayError as error:
            failures[tasks[task]] = str(error).strip().splitlines()[-1]
    for task in late:
        ray.cancel(task, force=True)
        failures[tasks[task]] = "no answer in time"
    return found, failures
