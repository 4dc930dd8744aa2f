"""Runs a function of ``node_facts`` on nodes of the cluster, with a task pinned to each node."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies.probe import node_facts, nvml
from tune_policies.ray_compat.connection import sent_by_value

Facts = dict[str, Any]
"""The result of a function of ``node_facts``."""


def run_on_nodes(
    function: Callable[..., Facts],
    arguments: Mapping[str, Mapping[str, Any]],
    *,
    timeout_s: float,
    late: str,
    at_once: int | None = None,
) -> tuple[dict[str, Facts], dict[str, str]]:
    """Run ``function`` on nodes, and return its results and the reasons for its failures, both by node ID.

    Args:
        function: A function of ``node_facts``.
        arguments: The keyword arguments of the function on each node, by node ID.
        timeout_s: The timeout for each node, in seconds from the submission of its task.
        late: The reason to return for a node that times out.
        at_once: The maximum number of nodes that run the function at the same time, or ``None`` for no limit.
    """
    found: dict[str, Facts] = {}
    failures: dict[str, str] = {}
    running: dict[Any, tuple[str, float]] = {}  # the node and the deadline of each task
    waiting = list(arguments)
    with sent_by_value(nvml, node_facts):  # so that nodes do not need this package
        # With 0 CPUs, a task also starts on a node whose CPUs are all in use.
        task_of = ray.remote(num_cpus=0, max_retries=0)(function)
        while waiting or running:
            while waiting and (at_once is None or len(running) < at_once):
                node_id = waiting.pop()
                # ``soft=False``: if the node has died, Ray raises an error instead of running the task on another node.
                pinned = task_of.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False))
                running[pinned.remote(**arguments[node_id])] = (node_id, time.monotonic() + timeout_s)
            first_deadline = min(deadline for _, deadline in running.values())
            ready, _ = ray.wait(list(running), timeout=max(0.0, first_deadline - time.monotonic()))
            for task in ready:
                node_id, _ = running.pop(task)
                try:
                    found[node_id] = ray.get(task)
                except RayError as error:
                    failures[node_id] = str(error).strip().splitlines()[-1]
            now = time.monotonic()
            for task in [task for task, (_, deadline) in running.items() if deadline <= now]:
                # Do not cancel the task: if its result arrived at the same moment, Ray would abort the program.
                node_id, _ = running.pop(task)
                failures[node_id] = late
    return found, failures
