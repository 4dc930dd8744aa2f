"""What a trial on each device reserves, by the policies, and whether the processes of a group fit at once."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tune_policies import AcceleratorPolicy, ClusterCapacity, CpuPolicy, GpuPolicy, TrialPlan
from tune_policies.cluster.accelerators import DEVICE_RESOURCES, check_device_amount
from tune_policies.cluster.labels import NODE_ID
from tune_policies.placement.layout import place_slots
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.value import suggest

from ..record.run_set import Arm, DeviceFound
from .interleaving import Group

_NAMES: Final = {"CPU": "cpu", "GPU": "gpu"}
_RESOURCES: Final = {resource.lower(): resource for resource in ("CPU", *sorted(DEVICE_RESOURCES))}


class Device(NamedTuple):
    """A device to measure.

    Attributes:
        resource: Ray's name of it.
        amount: How many of them a trial has, or which share of one; of CPUs it is told elsewhere.
    """

    resource: str
    amount: float = 1

    @property
    def name(self) -> str:
        """What a workload is told: ``"cpu"``, ``"gpu"``, or another family by Ray's name."""
        return _NAMES.get(self.resource, self.resource)

    def __str__(self) -> str:
        return self.name if self.amount == 1 else f"{self.name}@{self.amount:g}"

    def policy(self, cpus: float) -> ResourcePolicy:
        """Return the policy by which a trial with so many CPUs gets such a device."""
        if self.resource == "CPU":
            return CpuPolicy(cpus=cpus)
        if self.resource == "GPU":
            return GpuPolicy(gpus=self.amount, cpus=cpus)
        return AcceleratorPolicy(resource=self.resource, amount=self.amount, cpus=cpus)


class PlannedDevice(NamedTuple):
    """A device that was asked for, and what a trial there reserves.

    Attributes:
        device: Which.
        plan: Of one trial; ``None``: the cluster does not have it.
        found: The same for the record.
    """

    device: Device
    plan: TrialPlan | None
    found: DeviceFound


def parse_device(text: str) -> Device:
    """Return the device that ``text`` names: ``cpu``, ``gpu``, ``gpu@0.25``, or another family by Ray's name.

    Raises:
        InvalidResourcesError: There is no such family, or a trial cannot have so much of it.
    """
    name, at, amount = text.strip().partition("@")
    resource = _RESOURCES.get(name.lower())
    if resource is None:
        known = [_NAMES.get(each, each) for each in _RESOURCES.values()]
        hint = suggest(name, known) or f"; known: {', '.join(known)}"
        raise InvalidResourcesError(f"unknown device {text!r}{hint}")
    if not at:
        return Device(resource)
    if resource == "CPU":
        raise InvalidResourcesError(f"device {text!r}: write cpu, and say with --cpus how many CPUs a trial has")
    return Device(resource, check_device_amount(_amount(text, amount), resource))


def _amount(device: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise InvalidResourcesError(
            f"device {device!r}: after the @ write how much a trial has, a number above 0 such as 0.25"
        )
    return amount


def parse_devices(texts: Iterable[str]) -> tuple[Device, ...]:
    """Return the devices, each once.

    Raises:
        InvalidResourcesError: One of them does not exist, or there is none.
    """
    devices = tuple(dict.fromkeys(map(parse_device, texts)))
    if not devices:
        raise InvalidResourcesError("no device is named: --device cpu --device gpu compares the two")
    return devices


def plan_device(device: Device, capacity: ClusterCapacity, cpus: float) -> PlannedDevice:
    """Return what a trial with so many CPUs reserves for a device, or why the cluster does not have it.

    Raises:
        InvalidResourcesError: A trial cannot have so many CPUs, or such a share.
    """
    try:
        plan = device.policy(cpus).plan(capacity)
    except InfeasibleRequestError as error:
        # Without the suggestion: what to plan instead is nothing to measure.
        why = f"one trial needs {error.asked}, but {error.offered}: short of {error.short_of}"
        return PlannedDevice(device, None, DeviceFound(device=str(device), why_missing=why))
    found = DeviceFound(
        device=str(device),
        slot=str(plan.common_slot),
        at_once=plan.max_concurrent_trials,
        accelerator_type=plan.accelerator_type or _only_type(device, capacity),
    )
    return PlannedDevice(device, plan, found)


def _only_type(device: Device, capacity: ClusterCapacity) -> str | None:
    """Return the type of all devices of this kind in the cluster; ``None``: there are several, or it is not known."""
    if device.resource == "CPU":
        return None
    types = {node.accelerator_type for node, _ in capacity.groups if device.resource in node.resources.ticks}
    return types.pop() if len(types) == 1 else None


class Colocation(NamedTuple):
    """How the processes of a group share the cluster.

    Attributes:
        is_together: Whether all are there at once and take turns; else one comes after the other.
        shares_cpus_on: The node on which they have the same CPUs, used by the one whose turn it is; ``None``: each has
            its own.
    """

    is_together: bool
    shares_cpus_on: str | None = None

    def options(self, arm: Arm, plan: TrialPlan, group: Group) -> dict[str, Any]:
        """Return what Ray reserves for the process of an arm, as its options for an actor."""
        if self.shares_cpus_on is None:
            return plan.remote_options()
        # One process holds the CPUs that all share: the first that needs a device beside them.
        holder = next((each for each in group.arms if each.device != "cpu"), group.arms[0])
        own = {} if arm == holder else {"num_cpus": 0}
        return plan.on_nodes({NODE_ID: self.shares_cpus_on}).remote_options() | own


def colocate(group: Group, plans: Mapping[str, TrialPlan], capacity: ClusterCapacity) -> Colocation:
    """Return how the processes of a group share the cluster: the best way that fits, by arithmetic.

    They have all that they reserve at once; else, on one node, the same CPUs; else they come one after the other.
    ``plans`` says by the device's name what a trial on it reserves.
    """
    slots = [plans[arm.device].common_slot for arm in group.arms]
    if _holds(slots, capacity):
        return Colocation(is_together=True)
    cpus = max(slot.worker.cpus for slot in slots)
    # Without CPUs of their own; those without a device reserve nothing then.
    sharing = [slot.model_copy(update={"trial": slot.trial.replaced(cpus=0)}) for slot in slots if _has_device(slot)]
    for node in sorted(capacity.nodes, key=lambda node: node.node_id):
        if node.resources.cpus >= cpus and _holds(sharing, capacity.with_nodes([node])):
            return Colocation(is_together=True, shares_cpus_on=node.node_id)
    return Colocation(is_together=False)


def _holds(slots: Iterable[TrialSlot], capacity: ClusterCapacity) -> bool:
    """Return whether the alive nodes hold all of these trials at once."""
    # Trials with devices first: those without could else be counted on the CPUs that they need.
    ordered = sorted(slots, key=lambda slot: not _has_device(slot))
    wanted = [
        slot.model_copy(update={"max_concurrent_trials": ordered.count(slot)})
        for index, slot in enumerate(ordered)
        if slot not in ordered[:index]
    ]
    layout = place_slots(wanted, capacity.model_copy(update={"node_types": ()}))
    return all(layout.count(slot_type) == slot.max_concurrent_trials for slot_type, slot in enumerate(wanted))


def _has_device(slot: TrialSlot) -> bool:
    return bool(DEVICE_RESOURCES & slot.worker.ticks.keys())
