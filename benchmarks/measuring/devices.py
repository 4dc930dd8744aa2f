"""Which devices are measured: what a user calls them, and what a trial there reserves by this project's policies."""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from tune_policies import AcceleratorPolicy, ClusterCapacity, CpuPolicy, GpuPolicy, TrialPlan
from tune_policies.cluster.accelerators import DEVICE_RESOURCES, check_device_amount
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.value import suggest

from ..record.run_set import DeviceFound

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
        raise InvalidResourcesError(f"device {text!r}: how many CPUs a trial has is told by --cpus, so name it cpu")
    return Device(resource, check_device_amount(_amount(text, amount), resource))


def _amount(device: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise InvalidResourcesError(
            f"device {device!r}: behind the @ stands how much a trial has, a number above 0 such as 0.25"
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
        return PlannedDevice(device, None, DeviceFound(device=str(device), why_missing=str(error)))
    found = DeviceFound(
        device=str(device),
        slot=str(plan.slots[0]),
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
