"""What a trial of a run was observed to use, and which amounts it therefore needs.

Amounts are whole numbers: bytes of memory, and ticks of 1/10,000 of a CPU or of the time of a GPU.
"""

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field

from tune_policies.plan.gpu_memory_profile import flat
from tune_policies.values.field_types import FrozenDict
from tune_policies.values.resources import TICKS, Bytes, Count, amount_of
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

MEMORY: Final = ("host_memory_bytes", "gpu_memory_bytes")
"""The amounts that end a trial if they are too small."""

AMOUNT_NAMES: Final = {
    "cpus": "CPUs",
    "host_memory_bytes": "host memory",
    "gpu_memory_bytes": "GPU memory",
    "gpu_utilization": "GPU utilization",
}
"""The name of each field of ``TrialNeed`` in texts."""

SHORTEST_S: Final = 2.0
"""The time in seconds for which a trial must run so that its CPUs and GPU time count. Imports take most of the time of
a shorter trial."""

_CPUS_NEEDED: Final = 0.95
"""The part of the used CPUs that is reserved before rounding up, so that 6.1 used CPUs do not become 7."""

_MOST_WORDS: Final = 32
"""The maximum number of different words in a list. Longer lists, such as the columns of a table, are seldom alike."""

_GUESS: Final = 1.5
"""The assumed need of a trial that has only run out of memory so far, relative to the memory that it had."""


class TrialNeed(Value):
    """The amounts that a trial needs, or that its processes used. ``None`` means that an amount is unknown.

    Attributes:
        cpus: The CPUs.
        host_memory_bytes: The peak host memory in bytes.
        gpu_memory_bytes: The peak GPU memory in bytes, including the overhead outside the framework's allocator.
        gpu_utilization: The fraction of a GPU's time, from 0 to 1, in which it works for this trial.
    """

    cpus: float | None = Field(default=None, ge=0)
    host_memory_bytes: Bytes | None = None
    gpu_memory_bytes: Bytes | None = None
    gpu_utilization: float | None = Field(default=None, ge=0, le=1)

    def covers(self, other: "TrialNeed") -> bool:
        """Return whether each known amount of ``other`` is at most the amount of this need."""
        return all(map(operator.le, other._amounts, self._amounts))

    @cached_property
    def _amounts(self) -> tuple[float, ...]:
        """The amounts, with 0 for unknown ones."""
        return tuple(getattr(self, name) or 0 for name in TrialNeed.model_fields)

    def limited_to(self, most: "TrialNeed") -> "TrialNeed":
        """Return this need with each amount of at most the amount of ``most``. Amounts unknown there are omitted."""
        limited = {}
        for name in TrialNeed.model_fields:
            amount, largest = getattr(self, name), getattr(most, name)
            if amount is not None and largest is not None:
                limited[name] = min(amount, largest)
        return TrialNeed(**limited)

    def __or__(self, other: "TrialNeed") -> "TrialNeed":
        """Return the maximum of each amount."""
        most = {}
        for name in TrialNeed.model_fields:
            known = [need for need in (getattr(self, name), getattr(other, name)) if need is not None]
            most[name] = max(known, default=None)
        return TrialNeed(**most)

    def __str__(self) -> str:
        parts = []
        if self.gpu_memory_bytes is not None:
            parts.append(f"{format_bytes(self.gpu_memory_bytes)} of GPU memory")
        if self.gpu_utilization is not None:
            parts.append(f"{self.gpu_utilization:.0%} of the GPU's time")
        if self.cpus is not None:
            parts.append(amount_of(round(self.cpus, 2), "CPU"))
        if self.host_memory_bytes is not None:
            parts.append(f"{format_bytes(self.host_memory_bytes)} of host memory")
        return ", ".join(parts) or "nothing measured"


NOTHING: Final = TrialNeed()
"""A need without any known amount."""


class TrialObservation(Value):
    """What a trial has used so far. A later observation of the same trial replaces an earlier one.

    Attributes:
        trial_id: Tune's ID of the trial.
        config: The trial's config, with the keys of nested mappings joined by ``/``.
        reserved: The CPUs and the memory that the trial reserves.
        uses_gpu: Whether the trial reserves a GPU or a part of it.
        used: The peaks of memory, the mean number of CPUs, and the mean utilization by this trial alone.
        early: The amounts of the trial's first observation. ``learn`` sets them.
        too_little: The largest amounts of memory with which the trial ran out of memory.
        num_steps: The number of results that the trial has reported.
        is_saved: Whether the trial has a checkpoint, so that a failure loses only the time since then.
        elapsed_s: The time for which the trial has run, in seconds, without the lost time.
        lost_s: The time that the trial lost because it ran out of memory, in seconds.
        ended: Whether the trial has ended.
    """

    trial_id: str
    config: Annotated[dict[str, Any], BeforeValidator(flat)] = Field(default_factory=dict)
    reserved: TrialNeed = TrialNeed()
    uses_gpu: bool = False
    used: TrialNeed = TrialNeed()
    early: TrialNeed | None = None
    too_little: TrialNeed = TrialNeed()
    num_steps: Count = 0
    is_saved: bool = False
    elapsed_s: float = Field(default=0.0, ge=0)
    lost_s: float = Field(default=0.0, ge=0)
    ended: bool = False

    @cached_property
    def features(self) -> Mapping[str, float]:
        """The numbers and words of the config that may affect memory. See ``features_of``."""
        return FrozenDict(features_of(self.config))

    @cached_property
    def growths(self) -> Mapping[str, float]:
        """The factor by which each amount of memory grew after the first observation, at least 1."""
        growths = dict.fromkeys(MEMORY, 1.0)
        for name in MEMORY:
            early = getattr(self.early, name, None)
            grown = getattr(self.too_little, name) or 0  # the amount is 0 if the trial never ran out of memory
            if self.ended:
                grown = max(grown, getattr(self.used, name) or 0)
            if early:
                growths[name] = max(1.0, grown / early)
        return FrozenDict(growths)

    @cached_property
    def ran_out(self) -> bool:
        """Whether the trial ran out of memory."""
        return self.too_little != NOTHING

    @cached_property
    def counts(self) -> bool:
        """Whether the trial has reported at least twice, has ended, or ran out of memory."""
        return self.num_steps >= 2 or self.ended or self.ran_out

    @cached_property
    def _needed(self) -> "dict[tuple[str, float], NeededAmount]":
        """The amounts by name and growth that were computed before, because an observation is learned many times."""
        return {}

    def needed(self, name: str, growth: float) -> "NeededAmount":
        """Return the amount of one resource that the trial needs, with the features of its config. See ``amount``."""
        needed = self._needed.get((name, growth))
        if needed is None:
            needed = NeededAmount(self.features, self.amount(name, growth) or 0, is_guess=self.is_guess(name))
            self._needed[name, growth] = needed
        return needed

    def amount(self, name: str, growth: float) -> int | None:
        """Return the amount of one resource that the trial needs, or ``None`` if it is unknown.

        Args:
            name: The name of a field of ``TrialNeed``.
            growth: The factor by which the amount grows after the first observation of a trial.
        """
        used: float | None = getattr(self.used, name)
        too_little = int(getattr(self.too_little, name) or 0)
        if used is None:
            return math.ceil(_GUESS * too_little) or None
        if name == "cpus":  # a trial that used all its CPUs may be able to use more, but this is not known
            wanted = used * _CPUS_NEEDED
            return math.ceil(TICKS * min(wanted, self.reserved.cpus or wanted))
        if name == "gpu_utilization":
            return math.ceil(TICKS * used)
        needed = int(used)
        if not self.ended:
            early = getattr(self.early, name, None) or used
            needed = max(needed, math.ceil(early * growth))
        # A trial that ran out of memory and has not succeeded since needs more than it had.
        if needed > too_little:
            return needed
        return math.ceil(_GUESS * too_little)

    def is_guess(self, name: str) -> bool:
        """Return whether an amount is not known, because the trial has only run out of memory so far."""
        return (getattr(self.used, name) or 0) <= (getattr(self.too_little, name) or 0)


class NeededAmount(NamedTuple):
    """The amount of one resource that a trial needs.

    Attributes:
        features: The features of the trial's config.
        amount: The amount, or 0 if it is unknown.
        is_guess: Whether ``amount`` is only assumed, because the trial has only run out of memory so far.
    """

    features: Mapping[str, float]
    amount: int
    is_guess: bool

    @property
    def had(self) -> int:
        """The largest amount that the trial is known to have used or to have run out of."""
        if self.is_guess:
            return int(self.amount / _GUESS)
        return self.amount


def features_of(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the whole numbers of a flat config, and 1 for each text, bool and ``None``, such as ``{"net=mlp": 1}``.

    A list counts with its length, the sum of its whole numbers, and how often it contains each text. Fractional numbers
    are omitted, because they are mostly rates, which do not affect memory, and so are other values.
    """
    features: dict[str, float] = {}
    for name, value in config.items():
        if isinstance(value, bool | str | None):
            features[f"{name}={value}"] = 1
        elif isinstance(value, int):
            features[name] = value
        elif isinstance(value, tuple):
            features |= _features_of_list(name, value)
    return features


def _features_of_list(name: str, items: tuple[Any, ...]) -> dict[str, float]:
    """Return the features of a list. Lists inside it count as a part of it, and mappings inside it by their keys."""
    features: Counter[str] = Counter({f"length of {name}": 0})
    words: Counter[str] = Counter()
    for path, value in _leaves(name, items):
        features[f"length of {path}"] += 1
        if isinstance(value, bool | str | None):
            words[f"{path}={value}"] += 1
        elif isinstance(value, int):
            features[f"sum of {path}"] += value
    if len(words) > _MOST_WORDS:
        words.clear()
    return {**features, **words}


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the values inside a list, with the name of the list and the keys of mappings joined by ``/``."""
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(path, item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}/{key}", item)
    else:
        yield path, value
