"""Reads the reservations of actors and placement groups in a cluster, and the programs that own them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import ray

from tune_policies.placement.deadlock import Reservation
from tune_policies.ray_compat.gcs import free_by_node, living_actors, placement_groups, programs
from tune_policies.values.resources import Amounts, format_ticks, ray_ticks
from tune_policies.values.sanitize import one_line, redacted


class Holders(NamedTuple):
    """The reservations of actors and placement groups, and the free amounts of each node in ticks."""

    held: Sequence[Reservation]
    free: Sequence[Amounts]


def read_holders(own_groups: Collection[str] = ()) -> Holders:
    """Read the reservations of actors and placement groups, except those in ``own_groups``.

    Ray Client does not support this function.

    Raises:
        RayError: Ray cannot be reached.
        RuntimeError: Ray cannot be reached.
    """
    own_job, by_job = ray.get_runtime_context().get_job_id(), programs()

    def reservation(what: str, name: str, job_id: str, node_id: str, amounts: Mapping[str, float]) -> Reservation:
        program = "this program" if job_id == own_job else redacted(one_line(by_job.get(job_id, "another program")))
        named = f"{what} {one_line(name)!r}" if name else what
        return Reservation(node_id=node_id, amounts=ray_ticks(amounts), holder=f"{named} of {program}")

    actors = [
        reservation(f"actor {each.class_name}", each.name, each.job_id, each.node_id, each.resources)
        for each in living_actors()
        if each.resources and not each.group_id
    ]
    bundles = [
        reservation("placement group", group.name, group.job_id, bundle.node_id, bundle.resources)
        for group in placement_groups()
        if group.is_created and group.group_id not in own_groups
        for bundle in group.bundles
    ]
    return Holders(actors + bundles, [ray_ticks(node) for node in free_by_node().values()])


def describe_holders(request: Sequence[Mapping[str, float]], holders: Holders) -> str:
    """Return a description of the reservations that block a request for these bundles, or ``""`` if none exist."""
    bundles = [ray_ticks(bundle) for bundle in request]
    names = {name for bundle in bundles for name in bundle}
    short = {
        name
        for bundle in bundles
        for name, ticks in bundle.items()
        if all(node.get(name, 0) < ticks for node in holders.free)
    }
    amounts: dict[str, Counter[str]] = {}
    for each in holders.held:
        blocking = {name: ticks for name, ticks in each.amounts.items() if name in (short or names) and ticks > 0}
        if blocking:
            amounts.setdefault(each.holder, Counter()).update(blocking)
    return "; ".join(f"{holder} uses {format_amounts(blocking)}" for holder, blocking in sorted(amounts.items()))


def sum_of(request: Iterable[Mapping[str, float]]) -> Amounts:
    """Return the total resources of the bundles, in ticks."""
    total: Counter[str] = Counter()
    for bundle in request:
        total.update(ray_ticks(bundle))
    return total


def format_amounts(ticks: Amounts) -> str:
    """Return amounts in ticks as text, such as ``1 CPU, 0.5 GPU``."""
    return ", ".join(format_ticks(name, amount) for name, amount in sorted(ticks.items()))
