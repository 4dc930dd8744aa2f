"""Measures what frameworks use of a GPU outside their allocators, on each GPU model of the cluster."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies.cluster.capacity import NodeCapacity
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, ProbeError
from tune_policies.values.value import suggest

from .overhead import MeasuredOverhead, Overheads, save_overheads
from .overhead_measurement import measure_on_this_gpu

_FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "cupy")


def calibrate_gpu_overhead(frameworks: Iterable[str] | None = None, *, timeout_s: float = 300.0) -> Overheads:
    """Measure what frameworks use outside their allocators, on one whole GPU of each model in the cluster.

    A node whose GPUs differ must have all of them free.

    The measurements are kept in this machine's file for them, from which the next plan's limits take them.

    Args:
        frameworks: Of ``"torch"``, ``"tensorflow"``, ``"jax"`` and ``"cupy"``; ``None``: those that are installed there
            and see the GPU.
        timeout_s: How long it may take on a GPU, the wait for a free one included.

    Returns:
        All that is known now, earlier measurements included.

    Raises:
        InvalidResourcesError: A name is not one of a framework that can be measured, or the file cannot be written.
        InfeasibleRequestError: No node has a GPU that could be read.
        ProbeError: There is no Ray, no GPU was free in time, or nothing could be measured.
    """
    names = tuple(_FRAMEWORKS if frameworks is None else frameworks)
    for name in names:
        if name not in _FRAMEWORKS:
            raise InvalidResourcesError(
                f"cannot measure {name!r}{suggest(name, _FRAMEWORKS)} ({', '.join(_FRAMEWORKS)})"
            )
    measured: list[MeasuredOverhead] = []
    failures: list[str] = []
    for model, place in places_of_models(probe_cluster().nodes).items():
        for found in _measure_on(place, model, names, timeout_s):
            if "error" in found:
                failures.append(f"{found['framework']} on {model}: {found['error']}")
            else:
                measured.append(MeasuredOverhead(**found))
    if failures and (frameworks is not None or not measured):
        raise ProbeError(f"the overhead of {'; '.join(failures)}")
    return save_overheads(Overheads(measured=tuple(measured)))


class Place(NamedTuple):
    """Where a model is measured, and how many GPUs there must be free.

    Ray does not say which of a node's GPUs it hands out, so where they differ all of them are asked for.
    """

    node_id: str
    num_gpus: float


def places_of_models(nodes: Iterable[NodeCapacity]) -> dict[str, Place]:
    """Return where each GPU model is measured.

    Raises:
        InfeasibleRequestError: No node has a GPU that could be read.
    """
    places: dict[str, Place] = {}
    for node in nodes:
        models = {device.name for device in node.devices or ()}
        place = Place(node.node_id, 1 if len(models) == 1 else node.resources.gpus)
        if node.resources.gpus >= 1:
            places |= {name: place for name in models if name not in places or place.num_gpus < places[name].num_gpus}
    if not places:
        raise InfeasibleRequestError(
            asked="1 whole GPU to be measured on",
            offered="no node has a GPU whose model is known",
            short_of="GPU",
            suggestion="Add a node with a GPU and its driver; until then the safe defaults hold.",
        )
    return places


def _measure_on(place: Place, model: str, names: Sequence[str], timeout_s: float) -> list[dict[str, Any]]:
    # The children share the time; what is left of it is for Ray, to start the task.
    task = (
        ray.remote(num_cpus=0, num_gpus=place.num_gpus, max_retries=0)(measure_on_this_gpu)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(place.node_id, soft=False))
        .remote(names, timeout_s / (len(names) + 1), model)
    )
    try:
        found: list[dict[str, Any]] = ray.get(task, timeout=timeout_s)
    except GetTimeoutError:
        ray.cancel(task, force=True)
        raise ProbeError(
            f"no {model} was measured within {timeout_s:g} s: wait until a whole one is free, or raise timeout_s"
        ) from None
    except RayError as error:
        raise ProbeError(f"{model} could not be measured: {str(error).strip().splitlines()[-1]}") from error
    return found
