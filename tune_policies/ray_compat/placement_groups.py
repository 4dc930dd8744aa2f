"""The placement groups of a run of Tune, and how long each request has been waiting.

Tune's own resource manager hides its groups. It also considers a removed group ready, so that a trial waits
indefinitely for a process in this group. This manager implements the same public interface of Ray.
"""

import time
from collections import defaultdict
from collections.abc import Collection

import ray
from ray.air.execution import ResourceManager
from ray.air.execution.resources.placement_group import PlacementGroupAcquiredResources
from ray.tune import PlacementGroupFactory
from ray.util.placement_group import PlacementGroup, remove_placement_group

_UPDATE_INTERVAL_S = 0.1
"""The minimum time between two checks whether Ray has reserved a requested group, in seconds, as in Tune."""


class PlacementGroups(ResourceManager):  # type: ignore[misc]  # Ray has no types
    """Requests a placement group for each trial that starts, and removes it when the trial has ended."""

    def __init__(self) -> None:
        self._waiting: dict[ray.ObjectRef, PlacementGroup] = {}
        self._request_of: dict[PlacementGroup, PlacementGroupFactory] = {}
        self._ready: defaultdict[PlacementGroupFactory, list[PlacementGroup]] = defaultdict(list)
        self._in_use: set[PlacementGroup] = set()
        self._updated_s = 0.0

    def request_resources(self, resource_request: PlacementGroupFactory) -> None:
        """Request a placement group."""
        group = resource_request.to_placement_group()
        self._request_of[group] = resource_request
        # ``ready`` starts a task in the group, which ends when Ray has reserved the group.
        self._waiting[group.ready()] = group

    def cancel_resource_request(self, resource_request: PlacementGroupFactory) -> None:
        """Cancel one request. A request that Ray has not granted is canceled first."""
        # Tune cancels a request by its resources, so any group for these resources may be removed, as in Ray's manager.
        for group in self._waiting.values():
            if self._request_of[group] == resource_request:
                break
        else:
            group = self._ready[resource_request][-1]
        self._remove_unused(group)

    def _remove_unused(self, group: PlacementGroup) -> None:
        """Remove a group that no process uses."""
        future = next((future for future, other in self._waiting.items() if other == group), None)
        if future is not None:
            del self._waiting[future]
            ray.cancel(future)  # otherwise, Ray keeps the task that waits for the group
        else:
            self._ready[self._request_of[group]].remove(group)
        self._remove(group)

    def _remove(self, group: PlacementGroup) -> None:
        del self._request_of[group]
        remove_placement_group(group)

    def get_resource_futures(self) -> list[ray.ObjectRef]:
        """Return a future for each request that Ray has not granted."""
        return list(self._waiting)

    def update_state(self) -> None:
        """Find the requests that Ray has granted."""
        self._updated_s = time.monotonic()
        if not self._waiting:
            return
        granted, _ = ray.wait(list(self._waiting), num_returns=len(self._waiting), timeout=0)
        for future in granted:
            group = self._waiting.pop(future)
            self._ready[self._request_of[group]].append(group)

    def has_resources_ready(self, resource_request: PlacementGroupFactory) -> bool:
        """Return whether Ray has granted a request like ``resource_request`` that no trial uses yet."""
        if not self._ready[resource_request] and time.monotonic() >= self._updated_s + _UPDATE_INTERVAL_S:
            self.update_state()
        return bool(self._ready[resource_request])

    def acquire_resources(self, resource_request: PlacementGroupFactory) -> PlacementGroupAcquiredResources | None:
        """Return a granted group for a process that starts now, or ``None`` if there is none."""
        if not self.has_resources_ready(resource_request):
            return None
        group = self._ready[resource_request].pop()
        self._in_use.add(group)
        return PlacementGroupAcquiredResources(placement_group=group, resource_request=resource_request)

    def free_resources(self, acquired_resource: PlacementGroupAcquiredResources) -> None:
        """Remove the group of a process that has ended."""
        group = acquired_resource.placement_group
        self._in_use.remove(group)
        self._remove(group)

    def clear(self) -> None:
        """Remove all groups."""
        # Ray calls this method at the end of ``RayActorManager.cleanup``, where the processes have been killed.
        groups, self._request_of = self._request_of, {}
        self._waiting.clear()
        self._ready.clear()
        self._in_use.clear()
        if ray.is_initialized():
            for group in groups:
                remove_placement_group(group)

    @property
    def own_ids(self) -> frozenset[str]:
        """The IDs of all placement groups of the run, both requested and in use."""
        return frozenset(group.id.hex() for group in self._request_of)

    @property
    def ids_without_process(self) -> frozenset[str]:
        """The IDs of the groups that Ray has not granted, or that no process uses yet."""
        return frozenset(group.id.hex() for group in self._request_of.keys() - self._in_use)

    def replace_lost(self, lost_ids: Collection[str]) -> list[dict[str, float]]:
        """Request the groups in ``lost_ids`` again if no process uses them. Return the amounts of the new requests."""
        lost = [group for group in self._request_of.keys() - self._in_use if group.id.hex() in lost_ids]
        requested: list[dict[str, float]] = []
        for group in lost:
            request = self._request_of[group]
            # Ray reschedules a group that has lost its node, and would reserve its resources for no process.
            self._remove_unused(group)
            self.request_resources(request)
            requested.append(request.required_resources)
        return requested
