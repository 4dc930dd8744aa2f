"""Which Ray this is, and what is said where it is not one that was tried.

Much of what the border touches is private to Ray, so another version may have moved it. No Ray is refused for its
number: one that was not tried is warned of once, and a private name that is gone is found as the border is imported.
In its place is then a stand-in, which says so when it is used. What does not need that name goes on.
"""

import functools
import logging
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import ray

from tune_policies.values.errors import RayVersionError

_logger = logging.getLogger(__name__)

OLDEST_TRIED: Final = (2, 50)
NEWEST_TRIED: Final = (2, 60)
"""The range of ``pyproject.toml``, without patches."""

_TRIED: Final = "2.50 to 2.60"
_INSTALL: Final = "pip install 'ray[tune,train]>=2.50,<2.61'"


def is_tried(version: str) -> bool:
    """Return whether a version of Ray is within the range that was tried."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and OLDEST_TRIED <= tuple(map(int, numbers.groups())) <= NEWEST_TRIED


@functools.cache  # once a process
def warn_of_untried_ray() -> None:
    """Warn where this Ray is none that was tried."""
    if not is_tried(ray.__version__):
        _logger.warning(
            "Ray %s was not tried with this package: Ray %s was. It may work. A feature that needs something of Ray "
            "which this version has moved says so when you use it. To be sure: %s",
            ray.__version__,
            _TRIED,
            _INSTALL,
        )


def version_error(error: Exception, feature: str) -> RayVersionError:
    """Return the error of a feature that needs something of Ray which is not there, as ``error`` says."""
    why = str(error).partition(" (")[0]  # an ImportError ends with the file
    return RayVersionError(
        f"Ray {ray.__version__} lacks what {feature} needs: {why}. Ray {_TRIED} was tried: {_INSTALL}"
    )


@contextmanager
def needs_of_ray(feature: str) -> Iterator[None]:
    """Raise ``RayVersionError`` where something of Ray that is touched in the block is not there."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise version_error(error, feature) from error


def check_members(of_ray: object, names: Iterable[str], feature: str) -> None:
    """Raise ``RayVersionError`` where an object of Ray's lacks some of its private members."""
    missing = [name for name in names if not hasattr(of_ray, name)]
    if missing:
        raise version_error(AttributeError(f"{type(of_ray).__name__} has no {', '.join(missing)}"), feature)


class Gone:
    """Stands for a name that this Ray does not have: whatever uses it gets a ``RayVersionError``.

    Args:
        error: What the import of the name has raised.
        feature: What needs the name, as the subject of a sentence.
    """

    def __init__(self, error: ImportError, feature: str) -> None:
        self._why, self._feature = error, feature

    def _say(self, *args: object, **kwargs: object) -> NoReturn:
        raise version_error(self._why, self._feature) from self._why

    __call__ = __iter__ = __eq__ = __hash__ = __str__ = __format__ = __instancecheck__ = __subclasscheck__ = _say

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python itself asks for those, as where an object is copied
            raise AttributeError(name)
        self._say()

    def __or__(self, other: object) -> Any:
        """Be a part of a type such as ``RunConfig | None``."""
        return object

    def __mro_entries__(self, bases: object) -> tuple[type]:
        """Let a class inherit from it, of which nothing can be made."""
        return (type("Gone", (), {"__new__": self._say}),)
