"""Which trials need as much memory as one that ran out: a record for each time that a trial did.

Two configs are alike by their memory settings: what of a config can decide how much memory its trial needs.

A trial's record is kept in the trial itself. Tune saves it with the experiment, so it is there again when the
experiment is restored.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real

from ray.tune.experiment import Trial

from tune_policies.tune.oom_retry import MemoryFloor
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Count
from tune_policies.values.value import Value

_logger = logging.getLogger(__name__)

Setting = bool | int | float | str | None

MemorySettings = dict[str, Setting]
"""The entries of a config that can decide how much memory its trial needs, each by its path in the config."""


def memory_settings(config: Mapping[str, object], memory_keys: Sequence[str] | None = None) -> MemorySettings:
    """Return the entries of ``config`` that can decide how much memory its trial needs.

    Without ``memory_keys`` these are all entries but fractions. A learning rate decides no memory. A batch size does,
    even as a float: some searchers give whole numbers as floats.

    Args:
        config: The trial's config.
        memory_keys: The keys that count, such as ``"model/width"`` for a nested one; ``None``: all but fractions.
    """
    settings = dict(_flatten("", config, keep_fractions=memory_keys is not None))
    if memory_keys is None:
        return settings
    return {
        path: value for path, value in settings.items() if any(f"{path}/".startswith(f"{key}/") for key in memory_keys)
    }


def _flatten(path: str, value: object, *, keep_fractions: bool) -> Iterable[tuple[str, Setting]]:
    match value:
        case Mapping():
            items = [(_encodable(str(key)), each) for key, each in value.items()]
        case list() | tuple():
            items = [(str(index), each) for index, each in enumerate(value)]
        case str():
            return [(path, _encodable(value))]
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
    found: list[tuple[str, Setting]] = []
    for key, each in items:
        found += _flatten(f"{path}/{key}" if path else key, each, keep_fractions=keep_fractions)
    return found


def _encodable(text: str) -> str:
    """Return ``text`` as UTF-8 can hold it: Python reads a path that is no UTF-8 with lone surrogates in it."""
    return text.encode("utf-8", "backslashreplace").decode()


class OomRecord(Value):
    """A trial ran out of memory, and this is what its next try got.

    Attributes:
        settings: The memory settings of its config.
        floor: The least memory for a trial with such settings.
    """

    settings: MemorySettings
    floor: MemoryFloor

    def applies_to(self, settings: MemorySettings) -> bool:
        """Return whether a trial with ``settings`` needs as much: no number is smaller, and all else is equal."""
        both = self.settings.keys() & settings.keys()
        # A float that is whole in one config and a fraction in the other decides no memory: dropouts of 0.0 and 0.5.
        in_one_only = [found[path] for found in (self.settings, settings) for path in found.keys() - both]
        return all(isinstance(value, float) and value.is_integer() for value in in_one_only) and all(
            _is_no_less(settings[path], self.settings[path]) for path in both
        )


def _is_no_less(value: object, recorded: object) -> bool:
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (value, recorded)):
        return type(value) is type(recorded) and value == recorded
    return value >= recorded  # type: ignore[operator, no-any-return]


def floor_for(settings: MemorySettings, records: Iterable[OomRecord]) -> MemoryFloor:
    """Return the least memory for a trial with ``settings``: the most that any record about such a trial says."""
    floor = MemoryFloor()
    for record in records:
        if record.applies_to(settings):
            floor |= record.floor
    return floor


class TrialOomHistory(Value):
    """How often one trial ran out of memory, and what it got then.

    Attributes:
        records: One for each retry with more memory.
        num_same_share_retries: How many retries had the same share again, since the last one with more.
    """

    records: tuple[OomRecord, ...] = ()
    num_same_share_retries: Count = 0


def load_history(trial: Trial) -> TrialOomHistory:
    """Return the history of ``trial``, which may be from before Tune restored it."""
    text = getattr(trial, "oom_history", None)
    try:
        return TrialOomHistory() if text is None else TrialOomHistory.from_json(text)
    except InvalidResourcesError as error:  # another version of this package saved it
        _logger.warning("cannot read how often %s ran out of memory, so it counts as never: %s", trial, error)
        return TrialOomHistory()


def save_history(trial: Trial, history: TrialOomHistory) -> None:
    """Save ``history`` with ``trial``, so that a restored trial has it."""
    # Tune saves all attributes of a trial as JSON, with the experiment.
    trial.oom_history = history.to_json()
    trial.invalidate_json_state()
