"""Which out-of-memory retries of a run apply to which trials, by the memory settings of their configs.

Memory settings are the entries of a config that can affect the memory use of its trial. This module does no I/O.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from numbers import Integral, Real

from tune_policies.values.resources import Count
from tune_policies.values.value import Value, suggest

from .oom_retry import MemoryFloor

Setting = bool | int | float | str | None

MemorySettings = dict[str, Setting]
"""The entries of a config that can affect the memory use of its trial, keyed by their paths in the config."""


def memory_settings(config: Mapping[str, object], memory_keys: Sequence[str] | None = None) -> MemorySettings:
    """Return the entries of ``config`` that can affect the memory use of its trial.

    ``memory_keys`` are the keys of these entries, such as ``"model/width"`` for a nested key. By default, all entries
    except fractional numbers are returned, because a number such as a learning rate of 0.1 does not affect memory. A
    float with a whole value is included, because some searchers suggest values such as a batch size of 64.0.
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


def unknown_keys(memory_keys: Iterable[str], configs: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return the ``memory_keys`` that no config contains, with suggestions such as ``"; did you mean 'width'?"``."""
    paths = {path for config in configs for path, _ in _flatten("", config, keep_fractions=True)}
    known = {prefix for path in paths for prefix in accumulate(path.split("/"), "{}/{}".format)}
    return {key: suggest(key, known) for key in memory_keys if key not in known}


def _encodable(text: str) -> str:
    """Return ``text`` with lone surrogates escaped. Python uses lone surrogates in file names that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


class OomRecord(Value):
    """The memory with which a trial was retried after an out-of-memory error.

    Attributes:
        settings: The memory settings of the trial's config.
        floor: The minimum memory for a trial with similar settings.
    """

    settings: MemorySettings
    floor: MemoryFloor

    def applies_to(self, settings: MemorySettings) -> bool:
        """Return whether a trial with ``settings`` needs at least the recorded memory.

        It needs this memory if no number is smaller than in the record and all other entries are equal.
        """
        both = self.settings.keys() & settings.keys()
        # If only one config has a whole float, such as a dropout of 0.0, the other config may have a fractional number,
        # which is not a memory setting.
        in_one_only = [found[path] for found in (self.settings, settings) for path in found.keys() - both]
        return all(isinstance(value, float) and value.is_integer() for value in in_one_only) and all(
            _is_no_less(settings[path], self.settings[path]) for path in both
        )


def _is_no_less(value: object, recorded: object) -> bool:
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in (value, recorded)):
        return type(value) is type(recorded) and value == recorded
    return value >= recorded  # type: ignore[operator, no-any-return]


def floor_for(settings: MemorySettings, records: Iterable[OomRecord]) -> MemoryFloor:
    """Return the minimum memory for a trial with ``settings``, which is the maximum of all records that apply."""
    floor = MemoryFloor()
    for record in records:
        if record.applies_to(settings):
            floor |= record.floor
    return floor


class TrialOomHistory(Value):
    """The out-of-memory retries of one trial.

    Attributes:
        records: A record for each retry with more memory.
        num_same_share_retries: The number of retries with the same GPU fraction since the last retry with more memory.
    """

    records: tuple[OomRecord, ...] = ()
    num_same_share_retries: Count = 0
