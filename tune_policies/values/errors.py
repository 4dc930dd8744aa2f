"""The errors of this package, classified by the required fix.

::

    ResourcePolicyError
    ├── InvalidResourcesError (ValueError)   the amounts are invalid: fix the call
    ├── InfeasibleRequestError               the cluster is too small for the request: request less, or add nodes
    ├── ProbeError                           the cluster or a GPU could not be read: start Ray, check the driver
    │   └── RayVersionError                  a feature does not support this Ray version: install a tested version
    ├── MemoryLimitError                     the GPU memory limit could not be applied: see the fix in the message
    │   └── UnenforcedLimitError             a limit has no effect on this machine: install a build for the GPU
    └── MeasurementError                     a model or a trial failed while its memory was measured: fix its code

Ray sends errors between processes, so each error stores all its data in ``args`` and can be pickled.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tune_policies.values.sanitize import shortened

_MOST_CHOICES: Final = 5
"""The maximum number of a policy's choices that a message lists."""


class ResourcePolicyError(Exception):
    """The base class of all errors of this package."""

    def __str__(self) -> str:
        return shortened(self._message())

    def _message(self) -> str:
        """Return the whole message. Subclasses that build their own message override this method."""
        return super().__str__()


class InvalidResourcesError(ResourcePolicyError, ValueError):
    """An amount, a field or an argument is invalid, regardless of the cluster.

    Attributes:
        mistakes: A pair for each invalid field: the message, and the valid fields if the field is unknown, or ``""``.
            The tuple is empty for other errors.
    """

    mistakes: tuple[tuple[str, str], ...] = ()


class InfeasibleRequestError(ResourcePolicyError):
    """The request is valid, but not even one trial fits in the cluster.

    Attributes:
        asked: The resources that one trial needs, as text such as ``"2 CPUs, 1 GPU"``.
        offered: The resources of the best node or of the cluster, as text.
        short_of: Ray's name of the missing resource, or ``"GPU memory"``.
        suggestion: The nearest request that fits, and other fixes.
        tried: The errors of all choices, if the policy has several choices.
        fallback: A hint about a policy to use instead, or an empty string.
        accelerator_type: The device type that no node has, if it is the missing resource.
    """

    def __init__(
        self,
        asked: str,
        offered: str,
        short_of: str,
        suggestion: str,
        tried: "tuple[InfeasibleRequestError, ...]" = (),
        fallback: str = "",
        accelerator_type: str | None = None,
    ) -> None:
        # Do not use super(): a subclass may also inherit from a Ray error, and its constructor takes other arguments.
        Exception.__init__(self, asked, offered, short_of, suggestion, tried, fallback, accelerator_type)
        self.asked, self.offered, self.short_of = asked, offered, short_of
        self.suggestion, self.tried, self.fallback = suggestion, tried, fallback
        self.accelerator_type = accelerator_type

    def with_texts(self, **changes: str) -> "InfeasibleRequestError":
        """Return the same error with other texts: ``offered``, ``short_of``, ``suggestion`` or ``fallback``."""
        names = ("asked", "offered", "short_of", "suggestion", "tried", "fallback", "accelerator_type")
        return InfeasibleRequestError(**{name: getattr(self, name) for name in names} | changes)

    @classmethod
    def of_choices(cls, errors: "Sequence[InfeasibleRequestError]") -> "InfeasibleRequestError":
        """Return one error for several choices, with the available resources from the last choice's error."""
        if len(errors) == 1:
            return errors[0]
        asked = _first(" or else ", (error.asked for error in errors))
        short_of = _first(" and ", (error.short_of for error in errors))
        last = errors[-1]
        return cls(asked, last.offered, short_of, last.suggestion, tuple(errors), last.fallback)

    @classmethod
    def of_each(cls, errors: "Sequence[InfeasibleRequestError]") -> "InfeasibleRequestError":
        """Return one error for several choices, with the reason why each choice does not fit."""
        if len(errors) == 1:
            return errors[0]
        offered = _first("; ", (f"for {error.asked}: {error.offered}" for error in errors))
        return cls.of_choices(errors).with_texts(offered=offered)

    def _message(self) -> str:
        hints = f"{self.suggestion} {self.fallback}".strip()
        return f"one trial needs {self.asked}, but {self.offered}: short of {self.short_of}. {hints}"


def _first(between: str, texts: Iterable[str]) -> str:
    """Join the first five distinct texts, and append the number of further texts."""
    distinct = list(dict.fromkeys(texts))
    shown = distinct[:_MOST_CHOICES]
    if len(distinct) > _MOST_CHOICES:
        shown.append(f"{len(distinct) - _MOST_CHOICES} more")
    return between.join(shown)


class ProbeError(ResourcePolicyError):
    """The cluster, or a GPU in it, could not be read."""


class RayVersionError(ProbeError):
    """A feature needs a private part of Ray that the installed version does not have."""


class MemoryLimitError(ResourcePolicyError):
    """A GPU memory limit could not be applied, so the trial must not share its GPU."""


class UnenforcedLimitError(MemoryLimitError):
    """A GPU memory limit has no effect on this machine, for instance because the framework has no GPU support.

    All further trials on such machines would fail in the same way, so a run in which no trial could be limited ends.
    """


class MeasurementError(ResourcePolicyError):
    """The GPU memory of a model or of some trials could not be measured, because the model or a trial failed.

    Attributes:
        profile: The ``GpuMemoryProfile`` of the trials that did not fail, or ``None``.
    """

    def __init__(self, message: str, profile: object = None) -> None:
        super().__init__(message, profile)
        self.profile = profile

    def _message(self) -> str:
        return str(self.args[0])
