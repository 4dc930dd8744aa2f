"""What trials that ran out of memory teach about others: which configs need as much."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real

from ray.tune.experiment import Trial

from tune_policies.tune.oom_retry import MemoryFloor
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Count
from tune_policies.values.value import Value

Traits = dict[str, bool | int | float | str | None]
"""What of a trial's config may decide how much memory it needs, by its path in the config."""


def traits_of(config: Mapping[str, object], memory_keys: Sequence[str] | None = None) -> Traits:
    """Return what of ``config`` may decide the memory that a trial needs.

    Without ``memory_keys`` that is everything but fractions: a learning rate decides no memory, a batch size does, as
    a float too, which some searches give.

    Args:
        config: The trial's config.
        memory_keys: The keys that count, those inside others as ``"model/width"``; ``None``: all but fractions.
    """
    traits = dict(_flatten("", config, keep_fractions=memory_keys is not None))
    if memory_keys is None:
        return traits
    return {
        path: value for path, value in traits.items() if any(f"{path}/".startswith(f"{key}/") for key in memory_keys)
    }


def _flatten(
    path: str, value: object, *, keep_fractions: bool
) -> Iterable[tuple[str, bool | int | float | str | None]]:
    match value:
        case Mapping():
            items = [(_printable(str(key)), each) for key, each in value.items()]
        case list() | tuple():
            items = [(str(index), each) for index, each in enumerate(value)]
        case str():
            return [(path, _printable(value))]
        case None | bool():
            return [(path, value)]
        case Integral():
            return [(path, int(value))]
        case Real():
            if not math.isfinite(value):
                return [(path, repr(value))] if keep_fractions else []
            return [(path, float(value))] if keep_fractions or float(value).is_integer() else []
        case _:
            named = value if hasattr(value, "__qualname__") else type(value)
            return [(path, f"{getattr(named, '__module__', None)}.{named.__qualname__}")]
    found: list[tuple[str, bool | int | float | str | None]] = []
    for key, each in items:
        found += _flatten(f"{path}/{key}" if path else key, each, keep_fractions=keep_fractions)
    return found


def _printable(text: str) -> str:
    """Return ``text`` as it can be saved: a path that is no UTF-8 has halves of characters in it."""
    return text.encode("utf-8", "backslashreplace").decode()


class Lesson(Value):
    """That a trial with such a config ran out of memory, and what it got then.

    Attributes:
        traits: What of its config may have decided it.
        floor: What a config like it gets at least.
    """

    traits: Traits
    floor: MemoryFloor

    def is_about(self, traits: Traits) -> bool:
        """Return whether a trial with ``traits`` needs as much: equal, and in whole numbers not smaller."""
        both = self.traits.keys() & traits.keys()
        # A float that is whole here and was a fraction there is no whole number: a dropout of 0.0 and one of 0.5.
        others = [found[path] for found in (self.traits, traits) for path in found.keys() - both]
        return all(isinstance(value, float) and value.is_integer() for value in others) and all(
            _is_no_less(traits[path], self.traits[path]) for path in both
        )


def _is_no_less(value: object, learned: object) -> bool:
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (value, learned)):
        return type(value) is type(learned) and value == learned
    return value >= learned  # type: ignore[operator, no-any-return]


def floor_for(traits: Traits, lessons: Iterable[Lesson]) -> MemoryFloor:
    """Return what a trial with ``traits`` gets at least, by what other trials have taught."""
    floor = MemoryFloor()
    for lesson in lessons:
        if lesson.is_about(traits):
            floor |= lesson.floor
    return floor


_logger = logging.getLogger(__name__)


class TrialMemory(Value):
    """What a trial remembers of running out.

    Attributes:
        lessons: What it got each time, and for which config.
        num_same_share: How often it went back with the share that it had.
    """

    lessons: tuple[Lesson, ...] = ()
    num_same_share: Count = 0


def recall(trial: Trial) -> TrialMemory:
    """Return what ``trial`` remembers, also from before it was restored."""
    text = getattr(trial, "oom_history", None)
    try:
        return TrialMemory() if text is None else TrialMemory.from_json(text)
    except InvalidResourcesError as error:  # saved by another version of this
        _logger.warning("what %s remembers cannot be read: %s", trial, error)
        return TrialMemory()


def remember(trial: Trial, memory: TrialMemory) -> None:
    """Have ``trial`` remember ``memory``, also once it is restored."""
    # Tune saves all attributes of a trial as JSON, with the experiment.
    trial.oom_history = memory.to_json()
    trial.invalidate_json_state()
