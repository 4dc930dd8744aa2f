"""Measures the memory that frameworks use outside their allocators, on each GPU model of the cluster.

On a node with the GPU model, a child process for each framework uses the GPU, reports the memory of its allocator, and
waits. The overhead is the memory that the driver reports minus the memory of the allocator.
"""

import datetime
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies.cluster.node import NodeCapacity
from tune_policies.files.child_python import child_python, reason_of_exit
from tune_policies.probe.nvml import NvmlError, read_device_use, read_gpus
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, ProbeError
from tune_policies.values.field_types import check_names
from tune_policies.values.units import MIB
from tune_policies.values.wording import suggest

from ..gpu_memory.framework_overhead import MeasuredOverhead, Overheads, save_overheads
from ..gpu_memory.framework_settings import FRAMEWORKS

_CHILD: Final = Path(__file__).with_name("overhead_child.py")

_NOISE_BYTES: Final = 16 * MIB
"""The variation in the memory use of an idle device, in bytes."""

_Read = TypeVar("_Read")


def calibrate_gpu_overhead(frameworks: Collection[str] | None = None, *, timeout_s: float = 300.0) -> Overheads:
    """Measure how much memory frameworks use outside their allocators, on a whole GPU of each model in the cluster.

    If a node has different GPU models, all its GPUs must be free. The measurements are saved in a file on this machine,
    and later memory limits use them.

    Args:
        frameworks: One or more of ``"torch"``, ``"tensorflow"``, ``"jax"`` and ``"cupy"``. The default is all
            frameworks that are installed on the node and detect the GPU.
        timeout_s: The timeout for each GPU in seconds, including the wait for a free GPU.

    Returns:
        All measurements, including earlier measurements.

    Raises:
        InvalidResourcesError: ``frameworks`` is invalid, or the file cannot be written.
        InfeasibleRequestError: No node has a whole GPU of a known model.
        ProbeError: Ray is not running, no GPU was free in time, or nothing could be measured.
    """
    names: Sequence[str] = FRAMEWORKS
    if frameworks is not None:
        names = check_names(frameworks, name="frameworks")
    for name in names:
        if name not in FRAMEWORKS:
            raise InvalidResourcesError(
                f"unknown framework {name!r}{suggest(name, FRAMEWORKS)} (supported: {', '.join(FRAMEWORKS)})"
            )
    measured: list[MeasuredOverhead] = []
    failures: list[str] = []
    for model, place in places_of_models(probe_cluster().nodes).items():
        for found in _measure_on(place, model, names, timeout_s):
            if "error" in found:
                failures.append(f"{found['framework']} on {model}: {found['error']}")
            else:
                measured.append(MeasuredOverhead(**found))
    # By default, all frameworks are tried, and those that are not installed on a node are no error.
    if failures and (frameworks is not None or not measured):
        raise ProbeError(f"the overhead could not be measured for {'; '.join(failures)}")
    return save_overheads(Overheads(measured=tuple(measured)))


class Place(NamedTuple):
    """The node on which a GPU model is measured, and the number of GPUs to reserve there.

    If a node has different GPU models, all its GPUs are reserved, because Ray chooses which GPUs a task gets.
    """

    node_id: str
    num_gpus: float


def places_of_models(nodes: Iterable[NodeCapacity]) -> dict[str, Place]:
    """Return the place where each GPU model is measured, keyed by GPU model.

    Raises:
        InfeasibleRequestError: No node has a whole GPU of a known model.
    """
    places: dict[str, Place] = {}
    for node in nodes:
        models = {device.name for device in node.devices or ()}
        if node.resources.gpus < 1:
            continue
        # Ray chooses the GPU, so only a process with all GPUs of a node with several models sees each model.
        num_gpus = node.resources.gpus
        if len(models) == 1:
            num_gpus = 1
        for name in models:
            if name not in places or num_gpus < places[name].num_gpus:
                places[name] = Place(node.node_id, num_gpus)
    if not places:
        raise InfeasibleRequestError(
            asked="1 whole GPU to measure",
            offered="no node has a GPU of a known model",
            short_of="GPU",
            suggestion="Add a node with a GPU and its driver. Until then, memory limits use safe default overheads.",
        )
    return places


def _measure_on(place: Place, model: str, names: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    # Divide the timeout equally among the child processes and the start of Ray's task.
    task = (
        ray.remote(num_cpus=0, num_gpus=place.num_gpus, max_retries=0)(measure_on_this_gpu)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(place.node_id, soft=False))
        .remote(names, timeout_s / (len(names) + 1), model)
    )
    try:
        found: list[dict[str, Any]] = ray.get(task, timeout=timeout_s)
    except GetTimeoutError:
        # With ``force``, Ray ends the worker, which may be waiting for a child process.
        ray.cancel(task, force=True)
        raise ProbeError(
            f"no {model} could be measured within {timeout_s:g} s. Wait until a whole {model} is free, or increase "
            "timeout_s"
        ) from None
    except RayError as error:
        raise ProbeError(f"{model} could not be measured: {str(error).strip().splitlines()[-1]}") from error
    return found


def measure_on_this_gpu(frameworks: Iterable[str], timeout_s: float, model: str) -> list[dict[str, Any]]:
    """Return the fields of a ``MeasuredOverhead`` for each framework, or the framework's name and an ``error``.

    The first visible GPU of the model is used. ``timeout_s`` is the timeout for each framework.
    """
    names = tuple(frameworks)
    try:
        uuid = next((gpu["uuid"] for gpu in read_gpus() if gpu["name"] == model), None)
        if uuid is None:
            return [{"framework": name, "error": "the driver no longer lists the GPU"} for name in names]
        # Read before the first child, to know when a child has released its memory.
        idle_bytes, _ = _read_use(uuid, None)
    except NvmlError as error:
        return [{"framework": name, "error": f"the GPU cannot be read: {error}"} for name in names]
    return [{"framework": name, **_measure(name, uuid, model, idle_bytes, timeout_s)} for name in names]


def _measure(framework: str, uuid: str, model: str, idle_bytes: int, timeout_s: float) -> dict[str, Any]:
    if find_spec(framework) is None:
        return {"error": "the framework is not installed on the node"}
    try:
        used_before = use_once_settled(lambda: _read_use(uuid, None)[0], idle_bytes)
        reported, read = run_while_memory_is_allocated(
            child_python(str(_CHILD), framework),
            lambda pid: _read_use(uuid, pid),
            timeout_s=timeout_s,
            environ={"CUDA_VISIBLE_DEVICES": uuid},  # CUDA and the driver may number devices differently
        )
    except NvmlError as error:
        return {"error": f"the GPU cannot be read: {error}"}
    if isinstance(reported, str) or read is None:
        return {"error": str(reported)}
    used_now, process_bytes = read
    return overhead_fields(reported, model, used_before=used_before, used_now=used_now, process_bytes=process_bytes)


def use_once_settled(
    read_bytes: Callable[[], int], idle_bytes: int, *, timeout_s: float = 10.0, poll_s: float = 0.2
) -> int:
    """Return the device memory in use, in bytes, after the last child releases its memory or the timeout expires."""
    deadline = time.monotonic() + timeout_s
    used = read_bytes()
    while used > idle_bytes + _NOISE_BYTES and time.monotonic() < deadline:
        time.sleep(poll_s)
        used = read_bytes()
    return used


def run_while_memory_is_allocated(
    command: Sequence[str], read: Callable[[int], _Read], *, timeout_s: float, environ: Mapping[str, str]
) -> tuple[dict[str, Any], _Read] | tuple[str, None]:
    """Run a child process that prints a line of JSON, and call ``read`` with the child's process ID while it waits.

    Returns:
        The child's data and the result of ``read``, or the reason and ``None`` if the child printed no JSON.
    """
    # The errors go to a file, because a child that fills a pipe of its errors would wait.
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(  # noqa: S603 - the command comes from the caller
            command,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child,
    ):
        has_timed_out = threading.Event()

        def end_child() -> None:
            has_timed_out.set()
            child.kill()

        deadline = threading.Timer(timeout_s, end_child)
        deadline.start()
        try:
            # A framework may print other lines.
            line = next((line for line in child.stdout or () if line.startswith("{")), None)
            if line is not None:
                return json.loads(line), read(child.pid)
            exit_code = child.wait()
            errors.seek(0)
            printed = errors.read()
        finally:
            deadline.cancel()
            # The child waits for the end of its input, so it is killed as soon as the memory was read.
            child.kill()
    if has_timed_out.is_set():
        return f"the child process did not respond within {timeout_s:g} s", None
    return reason_of_exit(exit_code, printed), None


def overhead_fields(
    reported: Mapping[str, Any], gpu_model: str, *, used_before: int, used_now: int, process_bytes: int | None
) -> dict[str, Any]:
    """Return the fields of a ``MeasuredOverhead`` except ``framework``, or only an ``error``.

    Args:
        reported: The child's ``version`` and ``reserved_bytes``.
        gpu_model: The GPU's name.
        used_before: The memory in use on the device before the child started, in bytes.
        used_now: The memory in use on the device while the child keeps its memory, in bytes.
        process_bytes: The child's memory use in bytes as reported by the driver, or ``None`` if the driver does not
            list the child.
    """
    how, held = "process", process_bytes
    if held is None:  # the driver does not list the processes in a container
        how, held = "device", used_now - used_before
    if held < reported["reserved_bytes"]:
        return {
            "error": "the driver reports less memory than the framework's allocator. Measure again while no other "
            "process uses the GPU"
        }
    return {
        "gpu_model": gpu_model,
        "version": reported["version"],
        "overhead_bytes": held - reported["reserved_bytes"],
        "measured_on": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "how": how,
    }


def _read_use(uuid: str, pid: int | None) -> tuple[int, int | None]:
    """Return the memory in use on a GPU, and the memory of a process if the driver lists it, in bytes."""
    for device in read_device_use():
        if device.uuid != uuid:
            continue
        if pid is None:
            return device.used_bytes, None
        return device.used_bytes, device.bytes_by_process.get(pid)
    raise NvmlError(f"the driver no longer lists {uuid}")
