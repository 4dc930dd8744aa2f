"""Reads what a Ray cluster has: node totals from Ray, GPU models and memory from each GPU node.

Totals, not what is free just now: Ray reports less than is free while placement groups are pending.
"""

import os
import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import ray
import ray.cloudpickle
from ray._private.utils import read_ray_address
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies import devices
from tune_policies.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.capacity import ClusterCapacity, GpuDevice, NodeCapacity
from tune_policies.errors import InvalidResourcesError, ProbeError
from tune_policies.resources import Resources

_NOT_CUSTOM: Final = ("CPU", "GPU", "memory", "object_store_memory")

_CONNECT: Final = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR', log_to_driver=False)"


class ProbeWarning(UserWarning):
    """A part of the cluster could not be read; the capacity says "not known" there."""


def probe_cluster(address: str | None = None, *, timeout_s: float = 30.0) -> ClusterCapacity:
    """Read the nodes of a Ray cluster and their GPUs.

    Uses the Ray that the program is connected to. If there is none, it connects for the time of the call: to
    ``address``, else to ``RAY_ADDRESS``, else to a Ray that runs on this machine, else to one that it starts.

    Args:
        address: As for ``ray.init``: ``host:port``, ``ray://host:port``, ``"auto"``, or ``"local"`` to start one.
            Only where the program is not connected yet.
        timeout_s: Deadline for connecting, and again for reading the GPUs, in seconds.

    Raises:
        InvalidResourcesError: ``timeout_s`` is not above 0.
        ProbeError: Ray cannot be reached in time, goes away while it is read, or has no alive node.

    Warns:
        ProbeWarning: The GPUs of a node could not be read in time; its ``devices`` are ``None``.
    """
    if not timeout_s > 0:
        raise InvalidResourcesError(f"timeout_s must be above 0 seconds, got {timeout_s!r}")
    with _connection(address, timeout_s):
        try:
            alive = [node for node in ray.nodes() if node["Alive"]]
            with_gpus = [node for node in alive if node["Resources"].get("GPU", 0) > 0]
            gpus, failures = _read_gpus([node["NodeID"] for node in with_gpus], timeout_s)
        except RayError as error:
            raise ProbeError(f"Ray went away while it was read: {error}. Probe again once it is back") from error
    if not alive:
        raise ProbeError("Ray answers, but has no alive node: start one with `ray start`")
    for node in with_gpus:
        declared, found = node["Resources"]["GPU"], gpus.get(node["NodeID"])
        if found is not None and len(found) < declared:
            failures[node["NodeID"]] = f"Ray counts {declared:g} GPUs, but NVML lists {len(found)}"
    if failures:
        text = "; ".join(f"node {node_id[:8]}: {why}" for node_id, why in sorted(failures.items()))
        warnings.warn(f"GPU memory is not known where the GPUs were not read: {text}", ProbeWarning, stacklevel=2)
    return ClusterCapacity(
        nodes=tuple(_to_node(node, gpus.get(node["NodeID"])) for node in alive), read_at=datetime.now(UTC)
    )


@contextmanager
def _connection(address: str | None, timeout_s: float) -> Iterator[None]:
    if ray.is_initialized():
        if address is not None:
            raise ProbeError(
                f"this program is already connected to a Ray, so it cannot probe {address!r}: "
                "leave the address out, or call ray.shutdown() before"
            )
        yield
        return
    named = address or os.environ.get("RAY_ADDRESS") or "auto"
    # A cluster that died leaves its address in a file, and Ray goes by it; there is no public way to ask which.
    target = read_ray_address() if named == "auto" else named
    if target is not None and target != "local":
        _check_reachable(target, timeout_s)
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise ProbeError(f"cannot connect to Ray: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str, timeout_s: float) -> None:
    """Raise ``ProbeError`` unless a Ray answers at ``address`` in time.

    ``ray.init`` retries for minutes where nothing answers, cannot be interrupted, and may end the process. So
    the first try is made by a child process, which can be.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    way_out = (
        "check that Ray runs there (`ray start --head`), or name another address; 'local' starts a Ray for the moment. "
        "Without an address, RAY_ADDRESS counts, and then what the last `ray start` on this machine left in "
        "ray_current_cluster"
    )
    if not host or not port.isdigit():
        raise ProbeError(f"Ray address {address!r} is not host:port, ray://host:port, 'auto' or 'local': {way_out}")
    deadline = time.monotonic() + timeout_s
    try:
        socket.create_connection((host, int(port)), timeout=timeout_s).close()
        left = max(0.1, deadline - time.monotonic())
        child = [sys.executable, "-c", _CONNECT, address]
        subprocess.run(child, timeout=left, check=True, capture_output=True)  # noqa: S603
    except (OSError, OverflowError) as error:
        raise ProbeError(f"no Ray answers at {address!r} ({error}): {way_out}") from error
    except subprocess.TimeoutExpired as error:
        raise ProbeError(f"no Ray answers at {address!r} within {timeout_s:g} s: {way_out}") from error
    except subprocess.CalledProcessError as error:
        raise ProbeError(f"Ray at {address!r} refuses the connection: {_last_error(error.stderr)}") from error


def _last_error(stderr: bytes) -> str:
    """Return the message with which a Python program ended, in one line."""
    lines = stderr.decode(errors="replace").strip().splitlines() or ["no message"]
    # The message follows the last line of the traceback, which is indented as all of it.
    start = max((i for i, line in enumerate(lines) if re.match(r"[\w.]+: ", line)), default=len(lines) - 1)
    return " ".join(line.strip() for line in lines[start:])


def _read_gpus(node_ids: list[str], timeout_s: float) -> tuple[dict[str, tuple[GpuDevice, ...]], dict[str, str]]:
    """Read all nodes at once, each by a task pinned to it; return the GPUs, and why the others were not read."""
    if not node_ids:
        return {}, {}
    # By value, so that a node needs nothing but Ray.
    ray.cloudpickle.register_pickle_by_value(devices)
    try:
        read = ray.remote(num_cpus=0, max_retries=0)(devices.read_gpus)
        tasks = {
            read.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(): node_id
            for node_id in node_ids
        }
    finally:
        ray.cloudpickle.unregister_pickle_by_value(devices)
    ready, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=timeout_s)
    found, failures = {}, {}
    for task in ready:
        try:
            found[tasks[task]] = tuple(GpuDevice(**gpu) for gpu in ray.get(task))
        except (RayError, InvalidResourcesError) as error:  # whatever its driver raised: the node still counts
            failures[tasks[task]] = str(error).strip().splitlines()[-1]
    for task in late:
        ray.cancel(task, force=True)
        failures[tasks[task]] = f"no answer within {timeout_s:g} s"
    return found, failures


def _to_node(node: dict[str, Any], gpus: tuple[GpuDevice, ...] | None) -> NodeCapacity:
    totals: dict[str, float] = node["Resources"]
    types = sorted(name for name in totals if name.startswith(ACCELERATOR_TYPE_PREFIX))
    return NodeCapacity(
        node_id=node["NodeID"],
        resources=Resources(
            cpus=totals.get("CPU", 0),
            gpus=totals.get("GPU", 0),
            memory_bytes=int(totals["memory"]) if totals.get("memory", 0) >= 1 else None,
            custom={
                name: amount
                for name, amount in totals.items()
                if name not in _NOT_CUSTOM and name not in types and not name.startswith("node:")
            },
        ),
        accelerator_type=types[0].removeprefix(ACCELERATOR_TYPE_PREFIX) if types else None,
        labels=node.get("Labels") or {},
        devices=gpus,
    )
