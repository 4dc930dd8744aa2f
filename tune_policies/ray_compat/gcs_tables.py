"""Reads the tables of Ray's GCS in which actors and placement groups stand, with what each holds and where.

Ray's public way, ``ray.util.state``, asks the dashboard, which a plain install does not have, and says less: neither
who owns an actor nor whose a placement group is. This is what the dashboard asks itself. It cannot be asked through a
Ray Client. The messages are those of Ray 2.50 to 2.60.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray._private.state import actors as actors_as_dicts
from ray._private.state import available_resources_per_node
from ray._private.state import state as ray_state
from ray.core.generated.gcs_pb2 import ActorTableData, PlacementGroupTableData
from ray.util.placement_group import PlacementGroup, remove_placement_group

_STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""By the numbers in Ray's ``PlacementStrategy``."""


@dataclass(frozen=True)
class ActorRecord:
    """An actor that is alive. Identifiers are in hexadecimal, and empty where there is none.

    Attributes:
        actor_id: Its own.
        class_name: Its class, without the module.
        module: Where its class is defined.
        job_id: The program that started it.
        started_at: When it started, in seconds since 1970.
        process_id: The worker process that it is.
        owner_process_id: The worker process that started it.
        node_id: Where it runs.
        group_id: The placement group in which it is.
        resources: What it holds, by Ray's names.
        is_detached: Whether it outlives its program.
    """

    actor_id: str
    class_name: str
    module: str
    job_id: str
    started_at: float
    process_id: str
    owner_process_id: str
    node_id: str
    group_id: str
    resources: Mapping[str, float]
    is_detached: bool


@dataclass(frozen=True)
class BundleRecord:
    """A bundle of a placement group: what it holds, where (empty: nowhere yet), and on which nodes it may be."""

    resources: Mapping[str, float]
    node_id: str
    label_selector: Mapping[str, str]


@dataclass(frozen=True)
class GroupRecord:
    """A placement group, which may wait or be removed.

    Attributes:
        group_id: Its identifier, in hexadecimal.
        creator_id: The actor that made it; empty: a program or a task did.
        is_pending: Whether it waits for its resources.
        is_created: Whether it has them all.
        is_removed: Whether it is gone.
        is_detached: Whether it outlives its program.
        strategy: How its bundles may be placed, by Ray's name.
        bundles: What it is of.
    """

    group_id: str
    creator_id: str
    is_pending: bool
    is_created: bool
    is_removed: bool
    is_detached: bool
    strategy: str
    bundles: tuple[BundleRecord, ...]


def living_actors() -> list[ActorRecord]:
    """Return the actors of all programs that are alive.

    Raises:
        RayError: Ray went away.
        RuntimeError: Ray went away.
    """
    return [_to_actor(ActorTableData.FromString(each)) for each in _accessor().get_actor_table(None, "ALIVE")]


def placement_groups() -> list[GroupRecord]:
    """Return the placement groups of all programs.

    Raises:
        RayError: Ray went away.
        RuntimeError: Ray went away.
    """
    table = _accessor().get_placement_group_table()
    return [_to_group(PlacementGroupTableData.FromString(each)) for each in table]


def is_dead_actor_of(class_name: str, actor_id: str) -> bool:
    """Return whether an actor of that class is known to have died; ``False`` for one that is not known at all.

    Raises:
        RayError: Ray went away.
        RuntimeError: Ray went away.
    """
    if not actor_id:
        return False
    info = _accessor().get_actor_info(ray.ActorID.from_hex(actor_id))
    if info is None:
        return False
    actor = ActorTableData.FromString(info)
    return bool(actor.state == ActorTableData.DEAD and actor.class_name == class_name)


def remove_group(group_id: str) -> None:
    """Remove a placement group of whichever program. The public way takes a handle, which only its maker has."""
    remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group_id)))


def node_of_actor(actor_id: str) -> str | None:
    """Return the identifier of the node where an actor runs or ran; ``None``: it is not known.

    Ray's error of a lost actor names the node in words only, and only once Ray counts it as dead.
    """
    return actors_as_dicts(actor_id).get("Address", {}).get("NodeID") or None


def free_by_node() -> dict[str, dict[str, float]]:
    """Return what is not reserved, by node and Ray's names. The public ``available_resources`` is a sum over all."""
    free: dict[str, dict[str, float]] = available_resources_per_node()
    return free


def _accessor() -> Any:
    if hasattr(ray_state, "_connect_and_get_accessor"):
        return ray_state._connect_and_get_accessor()
    ray_state._check_connected()  # before Ray 2.60
    return ray_state.global_state_accessor


def _hex(identifier: bytes) -> str:
    """Return an identifier in hexadecimal; empty for none, which Ray writes as nothing or as all ones."""
    return "" if not identifier.strip(b"\xff") else identifier.hex()


def _to_actor(actor: Any) -> ActorRecord:
    return ActorRecord(
        actor_id=actor.actor_id.hex(),
        class_name=actor.class_name,
        module=actor.function_descriptor.python_function_descriptor.module_name,
        job_id=actor.job_id.hex(),
        started_at=actor.start_time / 1000,
        process_id=_hex(actor.address.worker_id),
        owner_process_id=_hex(actor.owner_address.worker_id),
        node_id=actor.address.node_id.hex(),
        group_id=_hex(actor.placement_group_id),
        resources=dict(actor.required_resources),
        is_detached=actor.is_detached,
    )


def _to_group(group: Any) -> GroupRecord:
    return GroupRecord(
        group_id=group.placement_group_id.hex(),
        creator_id=_hex(group.creator_actor_id),
        is_pending=group.state == PlacementGroupTableData.PENDING,
        is_created=group.state == PlacementGroupTableData.CREATED,
        is_removed=group.state == PlacementGroupTableData.REMOVED,
        is_detached=group.is_detached,
        strategy=_STRATEGIES[group.strategy],
        bundles=tuple(
            BundleRecord(dict(each.unit_resources), each.node_id.hex(), dict(each.label_selector))
            for each in group.bundles
        ),
    )
