"""Writes the policy that gives trials what their trainable requests, as a line of Python.

``tune.with_resources(f, lambda config: {...})`` computes a request for each trial. A policy replaces these requests, so
a message about them should contain the policy that has the same effect.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.plan.gpu_memory_profile import flat
from tune_policies.plan.slots_by_config import value_name
from tune_policies.values.resources import format_amount
from tune_policies.values.units import GIB, MIB

_NODE_PREFIX: Final = "node:"
"""The prefix of the resources that place a task on the node with an address, such as ``"node:10.0.0.5"``."""

_MOST_KINDS: Final = 8
"""The maximum number of policies in a line."""


class TrialRequest(NamedTuple):
    """The resources that a trainable requests for one trial.

    Attributes:
        bundles: The bundles by Ray's resource names, with the bundle of the trial's own process first. ``memory`` is in
            bytes.
        config: The config of the trial, or an empty mapping if it is unknown.
    """

    bundles: Sequence[Mapping[str, float]]
    config: Mapping[str, Any] = {}


def requests_differ(requests: Sequence[TrialRequest]) -> bool:
    """Return whether the trials request different resources. Amounts of 0 do not count."""
    found = {_amounts_of(request) for request in requests}
    return len(found) > 1


def policy_line(requests: Sequence[TrialRequest]) -> str | None:
    """Return a line of Python that creates a policy with the same resources for each trial.

    If the trials request the same resources, the line creates one policy. Otherwise, it creates a ``ByConfigPolicy``
    with the value in the configs that explains the requests. If there is no such value, the line contains a function
    whose body is ``...``, which the user must write.

    Returns:
        The line, or ``None`` if no policy has the same effect: a trial requests several bundles, devices of several
        kinds, a node by its address, or neither CPUs nor devices, or there are more than eight different requests.
    """
    lines = [_line_of(request.bundles) for request in requests]
    distinct = list(dict.fromkeys(lines))
    if not distinct or None in distinct or len(distinct) > _MOST_KINDS:
        return None
    if len(distinct) == 1:
        return distinct[0]
    key = _explaining_key(requests, lines)
    if key is None:
        policies = {str(line): repr(_describe(request.bundles)) for line, request in zip(lines, requests, strict=True)}
        return f"ByConfigPolicy(lambda config: ..., {{{_items((name, line) for line, name in policies.items())}}})"
    values = {_value(request, key): str(line) for request, line in zip(requests, lines, strict=True)}
    return f"ByConfigPolicy({key!r}, {{{_items((repr(value), line) for value, line in values.items())}}})"


def _items(pairs: Iterator[tuple[str, str]]) -> str:
    return ", ".join(f"{key}: {value}" for key, value in pairs)


def _value(request: TrialRequest, key: str) -> Any:
    return flat(request.config)[key]


def _amounts_of(request: TrialRequest) -> tuple[frozenset[tuple[str, float]], ...]:
    return tuple(
        frozenset((name, amount) for name, amount in bundle.items() if amount > 0) for bundle in request.bundles
    )


def _explaining_key(requests: Sequence[TrialRequest], lines: Sequence[str | None]) -> str | None:
    """Return the name of the value in the configs that determines the requests, or ``None`` if there is none.

    Names of algorithms and the like are preferred to numbers: a number such as a learning rate differs between all
    trials, so it seems to explain everything.
    """
    configs = [flat(request.config) for request in requests]
    found = []
    for key in sorted(set.intersection(*(set(config) for config in configs))):
        names = [value_name(config[key]) for config in configs]
        pairs = set(zip(names, lines, strict=True))
        num_values = len(set(names))
        # A value whose trials have different requests does not explain them.
        if None in names or len(pairs) > num_values:
            continue
        is_number = any(isinstance(config[key], int | float) for config in configs)
        most_values = len(set(lines)) if is_number else _MOST_KINDS
        if num_values <= most_values:
            found.append((is_number, num_values, key))
    if found:
        return min(found)[2]
    return None


def _line_of(bundles: Sequence[Mapping[str, float]]) -> str | None:
    """Return the Python code of a policy for one request, or ``None`` if no policy has the same effect."""
    if len(bundles) != 1:
        return None
    amounts = {name: amount for name, amount in bundles[0].items() if amount > 0}
    types = [name for name in amounts if name.startswith(ACCELERATOR_TYPE_PREFIX)]
    devices = [name for name in amounts if name in DEVICE_RESOURCES]
    others = amounts.keys() - {"CPU", "memory", *types, *devices}
    if len(devices) > 1 or len(types) > 1 or (types and not devices):
        return None
    if not devices and "CPU" not in amounts:
        return None  # a policy without devices reserves CPUs
    if any(name.startswith(_NODE_PREFIX) for name in others):
        return None  # plans do not count the resource of a node's address
    fields: dict[str, object] = {}
    if not devices:
        kind = "CpuPolicy"
    elif devices == ["GPU"]:
        kind = "GpuPolicy"
        fields["gpus"] = _number(amounts["GPU"])
    elif others:
        return None  # AcceleratorPolicy has no custom resources
    else:
        kind = "AcceleratorPolicy"
        fields |= {"resource": devices[0], "amount": _number(amounts[devices[0]])}
    # Without "CPU", Tune reserves no CPU, but a policy with devices divides the CPUs of a node among its trials.
    if "CPU" in amounts:
        fields["cpus"] = _number(amounts["CPU"])
    if "memory" in amounts:
        fields["memory"] = _memory(max(MIB, int(amounts["memory"])))  # the minimum of a policy
    if types:
        fields["accelerator_type"] = types[0].removeprefix(ACCELERATOR_TYPE_PREFIX)
    if others:
        fields["custom"] = {name: _number(amounts[name]) for name in sorted(others)}
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


def _number(amount: float) -> float:
    if float(amount).is_integer():
        return int(amount)
    return amount


def _memory(number: int) -> int | str:
    for size, unit in ((GIB, "GiB"), (MIB, "MiB")):
        if number % size == 0:
            return f"{number // size}{unit}"
    return number


def _describe(bundles: Sequence[Mapping[str, float]]) -> str:
    """Return the amounts of a request as a short name, such as ``"1 CPU, 0.25 GPU"``."""
    amounts = {name: amount for name, amount in bundles[0].items() if amount > 0}
    parts = []
    for name, amount in sorted(amounts.items()):
        shown = _memory(int(amount)) if name == "memory" else format_amount(amount)
        parts.append(f"{shown} {name}")
    return ", ".join(parts)
