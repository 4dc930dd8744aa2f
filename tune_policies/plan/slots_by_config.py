"""Chooses the slot of a trial by its config.

The choice is based on a GPU memory profile, on learned needs, on a decision between CPU and GPU, or on a value in the
config.
"""

import operator
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import conditions_of
from tune_policies.placement.request import Limit
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.gpu_memory_profile import GpuMemoryProfile, flat, numbers
from tune_policies.plan.headroom import Headroom, with_headroom
from tune_policies.plan.learned_needs import LearnedNeeds
from tune_policies.plan.trial_observation import AMOUNT_NAMES, TrialNeed
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import TICKS, Count, PositiveCount
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value
from tune_policies.values.wording import shorten, shorten_names, suggest

Device = Literal["CPU", "GPU"]
"""The kind of device on which a trial runs."""


class SlotsByConfig(Value):
    """Slot types, and the rule that selects the slot type for a trial's config.

    Attributes:
        slots: The slot types.
        holds_for: The package versions of the measurement, by name. With other versions, the measurements are not
            valid. If the mapping is empty, the measurements are valid with any version.
    """

    slots: tuple[TrialSlot, ...] = Field(min_length=1)
    holds_for: dict[str, str] = Field(default_factory=dict)

    @abstractmethod
    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the slot of a trial with this config.

        Raises:
            InfeasibleRequestError: No slot is suitable for the config, for instance because it needs more GPU memory
                than any slot has.
        """

    @abstractmethod
    def why_unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return a sentence about the information that is missing for a config, or ``None`` if nothing is missing."""

    def has_room(self, slot: TrialSlot, running: Sequence[TrialSlot]) -> bool:
        """Return whether a trial may start in ``slot`` while trials run in the slots ``running``."""
        return running.count(slot) < slot.max_concurrent_trials

    @property
    def varies(self) -> bool:
        """Whether trials may get different slots."""
        return True

    @property
    def condition(self) -> str:
        """What determines the number of concurrent trials, as text, or ``""`` if it is always the same."""
        return "depending on their configs"

    def configs_of(self, slot: TrialSlot) -> str:
        """Return which configs get ``slot``, as text, or ``""`` if this needs no explanation."""
        return ""

    @property
    def max_concurrent_trials(self) -> int:
        """The number of concurrent trials if all trials have the smallest configs."""
        return max(slot.max_concurrent_trials for slot in self.slots)

    def with_slots(self, change: Callable[[TrialSlot], TrialSlot]) -> Self:
        """Return a copy with each slot changed."""
        return self.model_copy(update={"slots": tuple(map(change, self.slots))})

    def min_concurrent_trials(self, num_places: int) -> int:
        """Return how many concurrent trials fit in ``num_places`` slots for any combination of measured configs."""
        return num_places


class SlotsByProfile(SlotsByConfig):
    """Slots of several sizes. A trial gets the smallest slot that is large enough for its config, based on a profile.

    A trial with an unknown config gets the last slot.

    Attributes:
        profile: The measured GPU memory of each config.
        headroom: The additional memory of a trial, as a fraction of the measured memory.
        slots: The slot types in ascending order of GPU memory. The last slot is the largest whole GPU, or the
            largest possible fraction if the workers of a trial must share a GPU.
    """

    profile: GpuMemoryProfile
    headroom: Headroom

    def why_unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return a sentence about the missing information, or ``None``. See :meth:`SlotsByConfig.why_unknown`."""
        if self.needed_bytes(config) is not None:
            return None
        return f"the GPU memory of the config {dict(config)} was not measured"

    def needed_bytes(self, config: Mapping[str, Any]) -> int | None:
        """Return the GPU memory that a trial with this config needs in bytes, or ``None`` if it is unknown."""
        return self.profile.gpu_memory_bytes(config, self.slots[-1].gpu_overhead_bytes)

    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the smallest slot for a trial with this config, or the largest slot if the config is unknown.

        Raises:
            InfeasibleRequestError: The config needs more GPU memory than the largest slot has.
        """
        largest = self.slots[-1]
        has = largest.gpu_memory_bytes or 0
        needed = self.needed_bytes(config)
        if needed is None:
            more_than = self.profile.more_than_bytes(config) or 0
            if more_than < has:
                return largest
            raise _too_large(config, f"more than {format_bytes(more_than)}", largest)
        # A trial that needs nearly a whole device does not share it, so it needs no headroom.
        wanted = min(with_headroom(needed, self.headroom), max(needed, has))
        for slot in self.slots:
            if (slot.gpu_memory_bytes or 0) >= wanted:
                return slot
        raise _too_large(config, format_bytes(needed), largest)


class SlotsByNeed(SlotsByConfig):
    """Slots of several sizes. A trial gets the slot with room for the most trials that has what its config needs.

    A trial whose config needs more than any slot has gets a slot with the most of this amount, and the last slot if it
    needs more GPU memory.

    Attributes:
        slots: The slot types. The last slot is the largest.
        sizes: The amounts for which each slot was planned.
        needs: What trials need, learned from other trials.
        total: The resources of the cluster, as in :class:`SlotsWithTotal`.
    """

    sizes: tuple[TrialNeed, ...]
    needs: LearnedNeeds
    total: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)

    def has_room(self, slot: TrialSlot, running: Sequence[TrialSlot]) -> bool:
        """Return whether a trial may start in ``slot`` while trials run in the slots ``running``."""
        reserved: Counter[str] = Counter()
        for other in (slot, *running):
            reserved.update(other.trial.ticks)
        names = slot.trial.ticks.keys() & self.total.keys()
        return super().has_room(slot, running) and all(reserved[name] <= self.total[name] for name in names)

    def min_concurrent_trials(self, num_places: int) -> int:
        """Return how many concurrent trials fit even if all of them need the largest slot."""
        return min(num_places, *(slot.max_concurrent_trials for slot in self.slots))

    def why_unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return a sentence about a config outside the observed range, or ``None``."""
        # The utilization of a GPU determines how many trials share it, and not what the trial with this config gets.
        reserved = [name for name in self.needs.amounts if name != "gpu_utilization"]
        outside = [name for name in self.needs.names_outside(config) if name in reserved]
        if not outside:
            return None
        if outside == reserved:
            return (
                f"the config {dict(config)} is outside the range of the observed trials, so it gets more than they used"
            )
        amounts = " and ".join(AMOUNT_NAMES[name] for name in outside)
        return (
            f"the config {dict(config)} is outside the range that was observed for the {amounts}, so it gets more "
            f"{amounts} than the trials used"
        )

    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the slot of a trial with this config. See the description of the class."""
        need = self.needs.need_for(config)
        if (need.gpu_memory_bytes or 0) > (self._most.gpu_memory_bytes or 0):
            return self.slots[-1]
        return self._slot_of(need.limited_to(self._most))

    @property
    def varies(self) -> bool:
        """Whether trials may get different slots. See :meth:`SlotsByConfig.varies`."""
        return len(self.slots) > 1

    @property
    def condition(self) -> str:
        """What determines the number of concurrent trials, as text. See :meth:`SlotsByConfig.condition`."""
        if self.needs.depends_on_config:
            return super().condition
        if self.min_concurrent_trials(self.max_concurrent_trials) == self.max_concurrent_trials:
            return ""
        return "depending on whether their configs are in the observed range"

    def configs_of(self, slot: TrialSlot) -> str:
        """Return which configs get ``slot``, as text. See :meth:`SlotsByConfig.configs_of`."""
        usual = self._slot_of(self.needs.at_most.limited_to(self._most))
        # Each observed config needs at most as much as ``usual`` has, so it gets this slot or one with more room.
        if self._preference(slot) <= self._preference(usual):
            return ""
        if self.needs.depends_on_config:
            return "configs that may need more than the observed ones"
        return "configs outside the observed range"

    @cached_property
    def _most(self) -> TrialNeed:
        """The largest amounts of all sizes."""
        return reduce(operator.or_, self.sizes)

    def _slot_of(self, need: TrialNeed) -> TrialSlot:
        """Return the slot with room for the most trials among those with enough for ``need``, or the last slot."""
        enough = [slot for slot, size in zip(self.slots, self.sizes, strict=True) if size.covers(need)]
        return max(enough, key=lambda slot: slot.max_concurrent_trials, default=self.slots[-1])

    def _preference(self, slot: TrialSlot) -> tuple[int, int]:
        """Return the sort key by which a config gets a slot: the most room first, and then the order of the slots."""
        return -slot.max_concurrent_trials, self.slots.index(slot)


class SlotsWithTotal(SlotsByConfig):
    """Slot types whose trials share the resources of the cluster.

    Attributes:
        total: The resources of the cluster by Ray's resource names. ``memory`` is in bytes, and all other amounts are
            in ticks of 1/10,000. ``memory`` is missing if the host memory of a node is unknown.
    """

    total: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)

    def has_room(self, slot: TrialSlot, running: Sequence[TrialSlot]) -> bool:
        """Return whether a trial may start in ``slot`` while trials run in the slots ``running``.

        Trials with different fractions of a device do not run at the same time, unless their slots are on different
        nodes: Ray adds up the fractions on a node, so it could admit a trial that fits on no device. A whole device
        never shares a device with a fraction.
        """
        if not super().has_room(slot, running):
            return False
        # If only trials of this type run, their number was checked above.
        others = [other for other in running if other != slot]
        if not others:
            return True
        if any(share_unequally(slot, other) for other in others):
            return False
        needed = _reserved([slot, *running])
        for name in _reserved([slot]):
            is_unknown = name == "memory" and name not in self.total
            if not is_unknown and needed[name] > self.total.get(name, 0):
                return False
        return True


class SlotsByDecision(SlotsWithTotal):
    """A slot type on the CPU and a slot type on the GPU. A number in the config determines the slot type.

    Attributes:
        slots: The slot type on the CPU, and the slot type on the GPU.
        size: The name of the number in the config, such as ``"batch_size"``, or ``"model/batch_size"`` in a nested
            mapping.
        devices: The measured sizes in ascending order, each with the device for its trials.
        total: The resources of the cluster, as in :class:`SlotsWithTotal`.
    """

    size: str
    devices: tuple[tuple[PositiveCount, Device], ...] = Field(min_length=1)

    def min_concurrent_trials(self, num_places: int) -> int:
        """Return how many concurrent trials fit even if all of them need the device with fewer slots."""
        return min(num_places, *(slot.max_concurrent_trials for slot in self.slots))

    def why_unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return a sentence about the missing information, or ``None``. See :meth:`SlotsByConfig.why_unknown`."""
        if self._size_of(config) is not None:
            return None
        return f"the decision requires a number above 0 for {self.size!r}, but the config is {dict(config)}"

    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the slot on the device that was better at the largest measured size up to the size in the config.

        If all measured sizes are larger, the smallest measured size is used. If the config has no size,
        the GPU slot is returned.
        """
        on_cpu, on_gpu = self.slots
        size = self._size_of(config)
        if size is None:
            return on_gpu
        _, best = self.devices[0]
        for measured, device in self.devices:  # in ascending order of sizes
            if measured <= size:
                best = device
        if best == "GPU":
            return on_gpu
        return on_cpu

    def _size_of(self, config: Mapping[str, Any]) -> float | None:
        size = numbers(flat(config)).get(self.size)
        if size is not None and size > 0:
            return size
        return None


def value_name(value: object) -> str | None:
    """Return the name of a config value in a policy file, such as ``"SAC"``, ``"16"``, ``"0.5"`` or ``"true"``.

    The keys of a JSON object are strings, so numbers and strings with the same text have the same name. A class is
    named by its module and name. A value that is not a single value, such as a list, has no name.
    """
    plain = flat({"value": value}).get("value")
    match plain:
        case None:
            # ``flat`` has divided a mapping into its items, so it is not a single value.
            if isinstance(value, Mapping):
                return None
            return "null"
        case bool():
            if plain:
                return "true"
            return "false"
        # 16 and 16.0 are equal in Python, so they have the same name.
        case float() if plain.is_integer():
            return str(int(plain))
        case str() | int() | float():
            return str(plain)
        case _:
            return None


def _check_key(key: object) -> object:
    if isinstance(key, Mapping) and "function" in key:
        raise InvalidResourcesError(
            f"key was the function {shorten(key['function'])}, and a file cannot contain a function. Create the policy "
            "in Python, or use the name of a value in the config as the key"
        )
    if (isinstance(key, str) and key) or callable(key):
        return key
    raise InvalidResourcesError(
        f"key must be the name of a value in the config, such as 'algo' or 'model/width', or a function of the config, "
        f"got {shorten(key)}"
    )


def _key_in_file(key: object) -> object:
    if isinstance(key, str):
        return key
    return {"function": describe_key(key)}


ConfigKey = Annotated[
    str | Callable[[Mapping[str, Any]], object],
    BeforeValidator(_check_key),
    PlainSerializer(_key_in_file, when_used="json"),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""The name of a value in the config (``"model/width"`` in a nested mapping), or a function of the config.

In JSON, a function is replaced by its name, which shows what is missing, but cannot be loaded: reading a file must not
run code.
"""


def describe_key(key: object) -> str:
    """Return a short name of a config key or function."""
    if isinstance(key, str):
        return key
    name: str = getattr(key, "__qualname__", type(key).__qualname__)
    return name.rpartition("<locals>.")[2]


class SlotsByValue(SlotsWithTotal):
    """A slot type for each value in the config, or for each value that a function of the config returns.

    Attributes:
        key: The name of the value in the config, or the function of the config.
        slot_of: The position in ``slots`` for each value, keyed by the name of the value.
        default: The position in ``slots`` for other values, or ``None`` if other values are errors.
        total: The resources of the cluster, as in :class:`SlotsWithTotal`.
    """

    key: ConfigKey
    slot_of: dict[str, Count] = Field(min_length=1)
    default: Count | None = None

    def min_concurrent_trials(self, num_places: int) -> int:
        """Return how many concurrent trials fit even if all of them need the slot type with the fewest slots."""
        return min(num_places, *(slot.max_concurrent_trials for slot in self.slots))

    def why_unknown(self, config: Mapping[str, Any]) -> str | None:
        """Return a sentence about the missing information, or ``None``. See :meth:`SlotsByConfig.why_unknown`."""
        if self.default is None or not isinstance(self.key, str) or _has(config, self.key):
            return None
        return f"the config has no value {self.key!r}, so the default policy applies"

    def slot_for(self, config: Mapping[str, Any]) -> TrialSlot:
        """Return the slot for the value in the config.

        Raises:
            InfeasibleRequestError: The config has no such value, the value has no slot and there is no default, or the
                function failed. The run reports this error as the failure of the trial.
        """
        name = self._name_of(config)
        at = self.default
        if name is not None:
            at = self.slot_of.get(name, self.default)
        if at is None:
            raise self._unknown(config, name)
        return self.slots[at]

    def _name_of(self, config: Mapping[str, Any]) -> str | None:
        """Return the name of the value in the config, or ``None`` if there is no value with a name."""
        if isinstance(self.key, str):
            if _has(config, self.key):
                return value_name(_value_at(config, self.key))
            return None
        try:
            return value_name(self.key(config))
        except Exception as error:
            raise InfeasibleRequestError(
                f"the result of the function {describe_key(self.key)}",
                f"it raised {type(error).__name__} for the config {shorten(dict(config))}: {error}",
                "a policy for this config",
                "Change the function so that it returns a value for each config.",
            ) from error

    def _unknown(self, config: Mapping[str, Any], name: str | None) -> InfeasibleRequestError:
        known = f"the policies are only for {shorten_names([repr(value) for value in self.slot_of])}"
        fix = "Add a policy for this value, or set default."
        if name is not None:
            fix = f"{_did_you_mean(name, self.slot_of)}{fix}"
        if not isinstance(self.key, str):
            shown = shorten(self.key(config))
            asked = f"a policy for {shown}, which the function {describe_key(self.key)} returned"
        elif _has(config, self.key):
            asked = f"a policy for {self.key}={shorten(_value_at(config, self.key))}"
        else:
            asked = f"a value {self.key!r} in its config"
            there = shorten_names([repr(name) for name in flat(config)])
            known = f"the config has only {there}" if there else "the config is empty"
            guess = _did_you_mean(self.key, flat(config))
            fix = f"{guess}Change the key of the policy, add the value to the search space, or set default."
        return InfeasibleRequestError(asked, known, "a policy for this config", fix)


def _did_you_mean(name: str, known: Collection[str]) -> str:
    guess = suggest(name, known)
    if guess:
        return f"D{guess.removeprefix('; d')} "
    return ""


_MISSING = object()


def _value_at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value with this name, or ``_MISSING``. A name such as ``"model/width"`` may be nested or not."""
    if key in config:
        return config[key]
    return flat(config).get(key, _MISSING)


def _has(config: Mapping[str, Any], key: str) -> bool:
    return _value_at(config, key) is not _MISSING


def share_unequally(one: TrialSlot, other: TrialSlot) -> bool:
    """Return whether workers of the two slots reserve different fractions of a device and may be on the same node."""
    if _are_on_different_nodes(one, other):
        return False
    fractions, others = dict(_device_fractions(one)), dict(_device_fractions(other))
    return any(fractions[name] != others[name] for name in fractions.keys() & others.keys())


def _are_on_different_nodes(one: TrialSlot, other: TrialSlot) -> bool:
    types = {one.accelerator_type, other.accelerator_type}
    if len(types) == 2 and None not in types:
        return True
    conditions = {key: (values, is_excluded) for key, values, is_excluded in conditions_of(other.label_selector)}
    for key, values, is_excluded in conditions_of(one.label_selector):
        if key not in conditions:
            continue
        other_values, other_excludes = conditions[key]
        if is_excluded and other_excludes:
            continue  # a label can have any value, so some value always fulfills both conditions
        if is_excluded or other_excludes:
            # One label must have some value, and the other must not: they are apart if all allowed values are excluded.
            are_apart = (other_values <= values) if is_excluded else (values <= other_values)
        else:
            are_apart = values.isdisjoint(other_values)
        if are_apart:
            return True
    return False


def _device_fractions(slot: TrialSlot) -> Iterator[tuple[str, int]]:
    """Yield the devices of which a worker reserves a fraction, each with the fraction in ticks."""
    for name, ticks in slot.worker.ticks.items():
        if name in DEVICE_RESOURCES and ticks < TICKS:
            yield name, ticks


def _reserved(slots: Sequence[TrialSlot]) -> Counter[str]:
    """Return the sum of what trials in these slots reserve.

    Workers with the same fraction of a device fill one device before they use the next.
    """
    needed: Counter[str] = Counter()
    sharing: Counter[tuple[str, int]] = Counter()
    for slot in slots:
        number = max(1, slot.num_workers)
        fractions = dict(_device_fractions(slot))
        for name, ticks in slot.worker.ticks.items():
            if name in fractions:
                sharing[name, ticks] += number
            else:
                needed[name] += number * ticks
        if slot.num_workers:
            needed.update(slot.trial.ticks)
    # A partly used device counts as a whole, because trials with another fraction must not use its rest.
    for (name, ticks), number in sharing.items():
        num_devices = -(-number // (TICKS // ticks))
        needed[name] += num_devices * TICKS
    return needed


def total_resources(capacity: ClusterCapacity) -> dict[str, int]:
    """Return the resources of all nodes by Ray's names, without host memory if it is unknown on a node."""
    total: dict[str, int] = {}
    for node, count in capacity.groups:
        for name, ticks in node.resources.ticks.items():
            total[name] = total.get(name, 0) + count * ticks
    if any(node.resources.memory_bytes is None for node, _ in capacity.groups):
        total.pop("memory", None)
    return dict(sorted(total.items()))  # a plan does not depend on the order of nodes


def _too_large(config: Mapping[str, Any], needed: str, largest: TrialSlot) -> InfeasibleRequestError:
    has = format_bytes(largest.gpu_memory_bytes or 0)
    offered = f"the largest GPU of the plan has {has}"
    if largest.has_gpu_fraction:
        offered = f"each of its {largest.num_workers} workers gets at most {has} of a GPU"
    return InfeasibleRequestError(
        f"{needed} of GPU memory with the config {dict(config)!r}",
        offered,
        Limit.GPU_MEMORY,
        "Remove the config, change it to need less memory, or add a larger GPU.",
    )
