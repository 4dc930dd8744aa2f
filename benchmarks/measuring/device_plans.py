"""Plans the resources of a trial on each device, and determines how a group of processes shares the cluster."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tune_policies import AcceleratorPolicy, ClusterCapacity, CpuPolicy, GpuPolicy, TrialPlan
from tune_policies.cluster.accelerators import DEVICE_RESOURCES, check_device_amount
from tune_policies.cluster.labels import NODE_ID
from tune_policies.placement.layout import place_slots
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.wording import suggest

from ..record.missing_measurements import Group
from ..record.run_set import Configuration, DeviceFound

_NAMES: Final = {"CPU": "cpu", "GPU": "gpu"}
_RESOURCES: Final = {resource.lower(): resource for resource in ("CPU", *sorted(DEVICE_RESOURCES))}


class Device(NamedTuple):
    """A device to measure: Ray's name of its resource, and the amount that a trial requests."""

    resource: str
    amount: float = 1

    @property
    def name(self) -> str:
        """The name that workloads receive (``"cpu"``, ``"gpu"``, or the Ray resource name of another accelerator)."""
        return _NAMES.get(self.resource, self.resource)

    def __str__(self) -> str:
        if self.amount == 1:
            return self.name
        return f"{self.name}@{self.amount:g}"

    def policy(self, cpus: float) -> ResourcePolicy:
        """Return the policy that gives a trial this device and ``cpus`` CPUs."""
        if self.resource == "CPU":
            return CpuPolicy(cpus=cpus)
        if self.resource == "GPU":
            return GpuPolicy(gpus=self.amount, cpus=cpus)
        return AcceleratorPolicy(resource=self.resource, amount=self.amount, cpus=cpus)


class PlannedDevice(NamedTuple):
    """A requested device and the plan of a trial on it.

    Attributes:
        plan: The plan of a trial on this device, or ``None`` if the cluster has no such device.
        found: The entry of the device in the record.
    """

    device: Device
    plan: TrialPlan | None
    found: DeviceFound


def parse_device(text: str) -> Device:
    """Parse a device: ``cpu``, ``gpu``, ``gpu@0.25``, or the Ray resource name of another accelerator.

    Raises:
        InvalidResourcesError: The device is unknown, or a trial cannot request this amount.
    """
    name, at, amount = text.strip().partition("@")
    resource = _RESOURCES.get(name.lower())
    if resource is None:
        known = [_NAMES.get(resource, resource) for resource in _RESOURCES.values()]
        hint = suggest(name, known) or f"; known: {', '.join(known)}"
        raise InvalidResourcesError(f"unknown device {text!r}{hint}")
    if not at:
        return Device(resource)
    if resource == "CPU":
        raise InvalidResourcesError(
            f"device {text!r} must not have an amount. Write cpu, and set the CPUs of a trial with --cpus"
        )
    try:
        number = float(amount)
    except ValueError:
        # Not a number, so that the check below also refuses a text.
        number = math.nan
    if not 0 < number < math.inf:
        raise InvalidResourcesError(
            f"device {text!r} is not valid. After the @, write the amount per trial, a number above 0, such as 0.25"
        )
    return Device(resource, check_device_amount(number, resource))


def parse_devices(texts: Iterable[str]) -> tuple[Device, ...]:
    """Parse the devices and remove duplicates. Raise ``InvalidResourcesError`` if the list is empty or not valid."""
    devices = tuple(dict.fromkeys(map(parse_device, texts)))
    if not devices:
        raise InvalidResourcesError("no device is given. Write --device cpu --device gpu to compare a CPU and a GPU")
    return devices


def plan_device(device: Device, capacity: ClusterCapacity, cpus: float) -> PlannedDevice:
    """Plan a trial with ``cpus`` CPUs on a device. If the plan is infeasible, the result contains the reason."""
    try:
        plan = device.policy(cpus).plan(capacity)
    except InfeasibleRequestError as error:
        # Omit the suggestion in the error, because it is about plans, not about measurements.
        why = f"one trial needs {error.asked}, but {error.offered}, so the cluster is short of {error.short_of}"
        return PlannedDevice(device, None, DeviceFound(device=str(device), why_missing=why))
    found = DeviceFound(
        device=str(device),
        slot=str(plan.common_slot),
        at_once=plan.max_concurrent_trials,
        accelerator_type=plan.accelerator_type or _only_type(device, capacity),
    )
    return PlannedDevice(device, plan, found)


def _only_type(device: Device, capacity: ClusterCapacity) -> str | None:
    """Return the accelerator type of the cluster's devices, or ``None`` for CPUs, different types or unknown types."""
    if device.resource == "CPU":
        return None
    types = {node.accelerator_type for node, _ in capacity.groups if device.resource in node.resources.ticks}
    if len(types) == 1:
        return types.pop()
    return None


class Colocation(NamedTuple):
    """The way in which the processes of a group share the cluster.

    Attributes:
        is_together: Whether all processes run at the same time and take turns. Otherwise, they run one after another.
        shares_cpus_on: The ID of the node on which the processes use the same CPUs in turn. If it is ``None``, each
            process reserves its own CPUs.
    """

    is_together: bool
    shares_cpus_on: str | None = None

    def options(self, configuration: Configuration, plan: TrialPlan, group: Group) -> dict[str, Any]:
        """Return the Ray options of the actor that measures a configuration."""
        if self.shares_cpus_on is None:
            return plan.remote_options()
        # The first process that needs an accelerator reserves the CPUs that all processes share.
        with_accelerator = (other for other in group.configurations if other.device != "cpu")
        holder = next(with_accelerator, group.configurations[0])
        own = {} if configuration == holder else {"num_cpus": 0}
        return plan.on_nodes({NODE_ID: self.shares_cpus_on}).remote_options() | own


def colocate(group: Group, plans: Mapping[str, TrialPlan], capacity: ClusterCapacity) -> Colocation:
    """Return how the processes of a group share the cluster, given the plans by device.

    If possible, all processes reserve their resources at the same time. Otherwise, they share the CPUs of one node, or
    run one after the other if no node is large enough.
    """
    slots = [plans[configuration.device].common_slot for configuration in group.configurations]
    if _fit_at_once(slots, capacity):
        return Colocation(is_together=True)
    # The processes take turns, so the CPUs of the largest one are enough for all.
    cpus = max(slot.worker.cpus for slot in slots)
    # If processes share CPUs, processes without an accelerator reserve nothing.
    sharing = [slot.model_copy(update={"trial": slot.trial.replaced(cpus=0)}) for slot in slots if _has_device(slot)]
    for node in sorted(capacity.nodes, key=lambda node: node.node_id):
        if node.resources.cpus >= cpus and _fit_at_once(sharing, capacity.with_nodes([node])):
            return Colocation(is_together=True, shares_cpus_on=node.node_id)
    return Colocation(is_together=False)


def _fit_at_once(slots: Iterable[TrialSlot], capacity: ClusterCapacity) -> bool:
    """Return whether the alive nodes have enough resources to run all of these trials concurrently."""
    # Place trials with accelerators first, so that other trials do not use the CPUs of nodes with accelerators.
    ordered = sorted(slots, key=lambda slot: not _has_device(slot))
    wanted = [
        slot.model_copy(update={"max_concurrent_trials": ordered.count(slot)})
        for index, slot in enumerate(ordered)
        if slot not in ordered[:index]
    ]
    # Without node types, only the alive nodes count.
    layout = place_slots(wanted, capacity.model_copy(update={"node_types": ()}))
    return all(layout.count(slot_type) == slot.max_concurrent_trials for slot_type, slot in enumerate(wanted))


def _has_device(slot: TrialSlot) -> bool:
    return bool(DEVICE_RESOURCES & slot.worker.ticks.keys())
