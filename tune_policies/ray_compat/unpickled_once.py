"""Carries what a plan adds to a trainable so that a process unpickles it once.

Tune's driver unpickles a trainable twice for each trial, and a plan takes longer than most trainables.
"""

import functools
import pickle
from typing import Any, Generic, TypeVar

from ray import cloudpickle

_Carried = TypeVar("_Carried")


class UnpickledOnce(Generic[_Carried]):
    """Holds a value that is never changed; all its copies in a process share one."""

    def __init__(self, value: _Carried) -> None:
        self.value = value

    @functools.cached_property
    def _pickled(self) -> bytes:
        pickled: bytes = cloudpickle.dumps(self.value)
        return pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._pickled,)


@functools.lru_cache(maxsize=16)
def _unpickled(pickled: bytes) -> UnpickledOnce[Any]:
    return UnpickledOnce(pickle.loads(pickled))  # noqa: S301  # made above, and carried by Ray as all else is
