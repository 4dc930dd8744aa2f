"""Identifies the calling process in Ray: its node, its job, the running task or actor, and its parent processes."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import ray

from tune_policies.ray_compat.version import needs_of_ray


@dataclass(frozen=True)
class ThisProcess:
    """The calling process, as Ray identifies it. Its IDs are hexadecimal.

    Attributes:
        process_id: Ray's ID of the process.
        node_id: The node of the process.
        job_id: The job of the process.
        submission_id: The ID of the submitted Ray job, or ``""`` if the job was not submitted.
        group_id: The placement group of the running task or actor, or ``""``.
        assigned: The resources of the running task or actor, or ``{}`` in a driver.
    """

    process_id: str
    node_id: str
    job_id: str
    submission_id: str
    group_id: str
    assigned: Mapping[str, float]


def this_process() -> ThisProcess:
    """Describe the calling process. Only the thread of a task knows its placement group."""
    with needs_of_ray("identifying the process of a program"):
        context = ray.get_runtime_context()
        worker = ray._private.worker.global_worker
        assigned = {}
        # In a driver, ``get_assigned_resources`` raises an AssertionError.
        if worker.mode == ray.WORKER_MODE:
            assigned = context.get_assigned_resources()
        return ThisProcess(
            process_id=context.get_worker_id(),
            node_id=context.get_node_id(),
            job_id=context.get_job_id(),
            submission_id=worker.core_worker.get_job_config().metadata.get("job_submission_id", ""),
            group_id=context.get_placement_group_id() or "",
            assigned=assigned,
        )


def is_started_here() -> bool:
    """Return whether this process has started Ray itself, so that the options of ``ray.init`` define its resources."""
    with needs_of_ray("finding out which process started Ray"):
        node = ray._private.worker._global_node
        return node is not None and bool(node.head)


def parents_in_ray() -> set[int]:
    """Return the process IDs of the parent processes that are Ray workers.

    Other parents are excluded, because a process ID of another container may be equal to that of an actor.
    """
    import psutil  # bundled with Ray, which adds it to the path

    found = set()
    for parent in psutil.Process(os.getpid()).parents():
        with suppress(psutil.Error):  # the parent has ended, or belongs to another user
            if "".join(parent.cmdline()[:1]).startswith("ray::"):
                found.add(parent.pid)
    return found
