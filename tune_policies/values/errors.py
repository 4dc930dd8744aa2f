"""The errors of this package, named by what the caller should do about them.

::

    ResourcePolicyError
    ├── InvalidResourcesError (ValueError)   the amounts are invalid: fix the call
    ├── InfeasibleRequestError               the cluster is too small for the request: ask for less, or add nodes
    ├── ProbeError                           the cluster or a GPU could not be read: start Ray, check the driver
    │   └── RayVersionError                  this Ray lacks what a feature needs: install a tried version
    ├── MemoryLimitError                     the GPU memory limit could not be applied: too late, or no device
    └── MeasurementError                     a model or a trial failed while its memory was measured: fix it

Ray sends errors between processes, so each keeps all its data in ``args`` and can be pickled.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tune_policies.values.sanitize import shortened

_MOST_CHOICES: Final = 5
"""The most choices of a policy that an error names."""


class ResourcePolicyError(Exception):
    """The base class of all errors of this package."""

    def __str__(self) -> str:
        return shortened(self._message())

    def _message(self) -> str:
        """Return the whole message. A subclass that builds its message overrides this method."""
        return super().__str__()


class InvalidResourcesError(ResourcePolicyError, ValueError):
    """The amounts, or the fields of a policy, are invalid on every cluster.

    Attributes:
        mistakes: The message for each wrong field of a value, and the fields that exist; empty for other errors.
    """

    mistakes: tuple[tuple[str, str], ...] = ()


class InfeasibleRequestError(ResourcePolicyError):
    """The request is valid, but not even one trial fits the cluster.

    Attributes:
        asked: The needs of one trial as text, such as ``"2 CPUs, 1 GPU"``.
        offered: The resources of the best node (or of the cluster) as text.
        short_of: The missing resource by Ray's name, or ``"GPU memory"``.
        suggestion: The nearest request that would work, and what else can be done.
        tried: The errors of all choices, if several were tried in turn.
        fallback: The policy to use instead, or an empty text.
    """

    def __init__(
        self,
        asked: str,
        offered: str,
        short_of: str,
        suggestion: str,
        tried: "tuple[InfeasibleRequestError, ...]" = (),
        fallback: str = "",
    ) -> None:
        # A subclass may also inherit from an error of Ray, whose constructor takes other arguments.
        Exception.__init__(self, asked, offered, short_of, suggestion, tried, fallback)
        self.asked = asked
        self.offered = offered
        self.short_of = short_of
        self.suggestion = suggestion
        self.tried = tried
        self.fallback = fallback

    def told(
        self,
        *,
        offered: str | None = None,
        short_of: str | None = None,
        suggestion: str | None = None,
        fallback: str | None = None,
    ) -> "InfeasibleRequestError":
        """Return the same error with other texts."""
        return InfeasibleRequestError(
            self.asked,
            self.offered if offered is None else offered,
            self.short_of if short_of is None else short_of,
            self.suggestion if suggestion is None else suggestion,
            self.tried,
            self.fallback if fallback is None else fallback,
        )

    @classmethod
    def of_choices(cls, errors: "Sequence[InfeasibleRequestError]") -> "InfeasibleRequestError":
        """Return one error for several choices, which says what the last choice was offered."""
        if len(errors) == 1:
            return errors[0]
        asked = _first(" or else ", (error.asked for error in errors))
        short_of = _first(" and ", (error.short_of for error in errors))
        last = errors[-1]
        return cls(asked, last.offered, short_of, last.suggestion, tuple(errors), last.fallback)

    @classmethod
    def of_each(cls, errors: "Sequence[InfeasibleRequestError]") -> "InfeasibleRequestError":
        """Return one error for several choices, which says why each choice does not fit."""
        if len(errors) == 1:
            return errors[0]
        offered = _first("; ", (f"for {error.asked}: {error.offered}" for error in errors))
        return cls.of_choices(errors).told(offered=offered)

    def _message(self) -> str:
        hints = f"{self.suggestion} {self.fallback}".strip()
        return f"one trial needs {self.asked}, but {self.offered}: short of {self.short_of}. {hints}"


def _first(between: str, texts: Iterable[str]) -> str:
    """Join the first different texts, and count the others."""
    each = list(dict.fromkeys(texts))
    others = [f"{len(each) - _MOST_CHOICES} more"] if len(each) > _MOST_CHOICES else []
    return between.join([*each[:_MOST_CHOICES], *others])


class ProbeError(ResourcePolicyError):
    """The cluster, or a GPU in it, could not be read."""


class RayVersionError(ProbeError):
    """The installed Ray lacks a private part of Ray that a feature needs."""


class MemoryLimitError(ResourcePolicyError):
    """A GPU memory limit could not be applied, so the trial must not run beside others."""


class MeasurementError(ResourcePolicyError):
    """The GPU memory of a model or of some trials could not be measured because they failed.

    Attributes:
        profile: The ``GpuMemoryProfile`` of the trials that did not fail, or ``None``.
    """

    def __init__(self, message: str, profile: object = None) -> None:
        super().__init__(message, profile)
        self.profile = profile

    def _message(self) -> str:
        return str(self.args[0])
