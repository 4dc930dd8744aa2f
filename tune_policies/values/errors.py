"""What can go wrong, named by what the caller should do about it.

::

    ResourcePolicyError
    ├── InvalidResourcesError (ValueError)   the amounts make no sense: fix the call
    ├── InfeasibleRequestError               sound amounts, the cluster is too small: ask for less, or add nodes
    ├── ProbeError                           the cluster or a GPU could not be read: start Ray, check the driver
    │   └── RayVersionError                  this Ray lacks what a feature needs: install one that was tried
    ├── MemoryLimitError                     the GPU-memory limit could not be applied: too late, or no device
    └── MeasurementError                     a model or a trial failed while its memory was found out: fix it

Ray carries errors between processes, so each keeps all its data in ``args`` and survives pickling.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tune_policies.values.sanitize import shortened

_MOST_CHOICES: Final = 5
"""So many choices of a policy are named in an error."""


class ResourcePolicyError(Exception):
    """Anything that this package raises on purpose."""

    def __str__(self) -> str:
        return shortened(self._message())

    def _message(self) -> str:
        """Return the message in full length; a subclass that builds its message overrides this method."""
        return super().__str__()


class InvalidResourcesError(ResourcePolicyError, ValueError):
    """The amounts, or the fields of a policy, are invalid on every cluster.

    Attributes:
        mistakes: For each wrong field of a value the message, and the fields that exist; empty for other errors.
    """

    mistakes: tuple[tuple[str, str], ...] = ()


class InfeasibleRequestError(ResourcePolicyError):
    """The request is sound, but not even one trial fits the cluster.

    Attributes:
        asked: What one trial needs, as text: ``"2 CPUs, 1 GPU"``.
        offered: What the best node (or the cluster) has, as text.
        short_of: Name of the resource that is missing, spelled as in Ray: ``"GPU"``, ``"CPU"``,
            ``"memory"``, a custom resource, or ``"GPU memory"``.
        suggestion: The nearest request that would work, and what else can be done.
        tried: The errors of each choice, where several were tried in turn.
        fallback: Which policy to take instead; empty: the error advises none.
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
        # A subclass may also be an error of Ray's, whose constructor takes other arguments.
        Exception.__init__(self, asked, offered, short_of, suggestion, tried, fallback)
        self.asked = asked
        self.offered = offered
        self.short_of = short_of
        self.suggestion = suggestion
        self.tried = tried
        self.fallback = fallback

    def told(
        self, *, offered: str | None = None, suggestion: str | None = None, fallback: str | None = None
    ) -> "InfeasibleRequestError":
        """Return the same error in other words."""
        return InfeasibleRequestError(
            self.asked,
            self.offered if offered is None else offered,
            self.short_of,
            self.suggestion if suggestion is None else suggestion,
            self.tried,
            self.fallback if fallback is None else fallback,
        )

    @classmethod
    def of_choices(cls, errors: "Sequence[InfeasibleRequestError]") -> "InfeasibleRequestError":
        """Return the error of several choices that names what the last one was offered; of one alone, its own."""
        if len(errors) == 1:
            return errors[0]
        asked = _first(" or else ", (error.asked for error in errors))
        short_of = _first(" and ", (error.short_of for error in errors))
        last = errors[-1]
        return cls(asked, last.offered, short_of, last.suggestion, tuple(errors), last.fallback)

    @classmethod
    def of_each(cls, errors: "Sequence[InfeasibleRequestError]") -> "InfeasibleRequestError":
        """Return the error that says of each of several choices why it does not fit; of one alone, its own."""
        if len(errors) == 1:
            return errors[0]
        offered = _first("; ", (f"for {error.asked}: {error.offered}" for error in errors))
        return cls.of_choices(errors).told(offered=offered)

    def _message(self) -> str:
        hints = f"{self.suggestion} {self.fallback}".strip()
        return f"one trial needs {self.asked}, but {self.offered}: short of {self.short_of}. {hints}"


def _first(between: str, texts: Iterable[str]) -> str:
    """Join the first texts, each once, and count the others."""
    each = list(dict.fromkeys(texts))
    others = [f"{len(each) - _MOST_CHOICES} more"] if len(each) > _MOST_CHOICES else []
    return between.join([*each[:_MOST_CHOICES], *others])


class ProbeError(ResourcePolicyError):
    """The cluster, or a GPU in it, could not be read."""


class RayVersionError(ProbeError):
    """The Ray that is installed lacks something that a feature needs and that is private to Ray."""


class MemoryLimitError(ResourcePolicyError):
    """A GPU-memory limit could not be applied, so the trial must not run beside its neighbours."""


class MeasurementError(ResourcePolicyError):
    """The GPU memory of a model or of some trials could not be found out, as they failed.

    Attributes:
        profile: A ``GpuMemoryProfile`` of those that did not fail; ``None``: there are none.
    """

    def __init__(self, message: str, profile: object = None) -> None:
        super().__init__(message, profile)
        self.profile = profile

    def _message(self) -> str:
        return str(self.args[0])
