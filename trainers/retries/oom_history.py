"""The out-of-memory retries of a trial, and the trials with similar configs that get the same memory.

Memory settings are the entries of a config that can affect the memory use of its trial. This module does no I/O.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from numbers import Integral, Real
from typing import TypeGuard

from tune_policies.values.resources import Count
from tune_policies.values.value import Value
from tune_policies.values.wording import suggest

from .memory_floor import MemoryFloor

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
    prefixes = tuple(f"{key}/" for key in memory_keys)
    # With the slash, the key ``width`` does not include ``width2``.
    return {path: value for path, value in settings.items() if f"{path}/".startswith(prefixes)}


def _flatten(path: str, value: object, *, keep_fractions: bool) -> Iterable[tuple[str, Setting]]:
    match value:
        case Mapping():
            entries = [(_encodable(str(key)), entry) for key, entry in value.items()]
        case list() | tuple():
            entries = [(str(index), entry) for index, entry in enumerate(value)]
        case str():
            return [(path, _encodable(value))]
        case None | bool():  # before numbers, because Python counts ``True`` as an integer
            return [(path, value)]
        case Integral():
            return [(path, int(value))]
        case Real():
            is_finite = math.isfinite(value)
            if not keep_fractions and not (is_finite and float(value).is_integer()):
                return []
            if not is_finite:  # JSON has no infinity
                return [(path, repr(value))]
            return [(path, float(value))]
        case _:
            # A class or a function stands for itself, and any other object for its class. Its ``repr`` may contain an
            # address.
            named = value if hasattr(value, "__qualname__") else type(value)
            return [(path, f"{getattr(named, '__module__', None)}.{named.__qualname__}")]
    found: list[tuple[str, Setting]] = []
    for key, entry in entries:
        inner_path = f"{path}/{key}" if path else key
        found += _flatten(inner_path, entry, keep_fractions=keep_fractions)
    return found


def unknown_keys(memory_keys: Iterable[str], configs: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return the ``memory_keys`` that no config contains, with suggestions such as ``"; did you mean 'width'?"``."""
    known: set[str] = set()
    for config in configs:
        for path, _ in _flatten("", config, keep_fractions=True):
            known.update(accumulate(path.split("/"), "{}/{}".format))  # a, a/b and a/b/c for a/b/c
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
        for path in self.settings.keys() | settings.keys():
            if path in self.settings and path in settings:
                if not _is_no_less(settings[path], self.settings[path]):
                    return False
                continue
            # If only one config has a whole float, such as a dropout of 0.0, the other config may have a fractional
            # number, which is not a memory setting.
            value = self.settings[path] if path in self.settings else settings[path]
            if not isinstance(value, float) or not value.is_integer():
                return False
        return True


def _is_no_less(value: Setting, recorded: Setting) -> bool:
    if _is_number(value) and _is_number(recorded):
        return value >= recorded
    return type(value) is type(recorded) and value == recorded


def _is_number(value: Setting) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
        num_same_memory_retries: The number of retries with the same memory since the last retry with more memory.
        other_pids: The IDs of the largest processes of the node when Ray's memory monitor last killed the trial,
            without Ray's workers. ``None`` if the monitor has not killed the trial.
    """

    records: tuple[OomRecord, ...] = ()
    num_same_memory_retries: Count = 0
    other_pids: tuple[Count, ...] | None = None
