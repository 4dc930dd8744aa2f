"""Checks the version of Ray, and reports which feature needs a part that this version lacks.

Untested versions may have moved private APIs of Ray, but no version is rejected. An untested version causes one
warning, and a missing private name is replaced by a stand-in that raises an error when a feature uses it.
"""

import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import ray

from tune_policies.values.errors import RayVersionError
from tune_policies.values.ray_versions import TRIED, is_tried

_logger = logging.getLogger(__name__)

_INSTALL: Final = "pip install 'ray[tune,train]>=2.50,<2.61'"


@functools.cache  # log once in each process
def warn_of_untried_ray() -> None:
    """Log a warning if this version of Ray was not tested."""
    if not is_tried(ray.__version__):
        _logger.warning(
            "Ray %s was not tested with this package, only Ray %s. If this version has moved a part of Ray that a "
            "feature needs, using the feature raises an error. To install a tested version, run: %s",
            ray.__version__,
            TRIED,
            _INSTALL,
        )


def version_error(error: Exception, feature: str) -> RayVersionError:
    """Return the error to raise if a feature needs a part of Ray and ``error`` reports that it is missing."""
    why = str(error).partition(" (")[0]  # the message of an ImportError ends with the file path in parentheses
    return RayVersionError(
        f"Ray {ray.__version__} lacks a part that {feature} needs: {why}. Install a tested version, {TRIED}: {_INSTALL}"
    )


@contextmanager
def needs_of_ray(feature: str) -> Iterator[None]:
    """Raise a ``RayVersionError`` about ``feature`` if the block uses a missing part of Ray."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise version_error(error, feature) from error


def check_members(of_ray: object, names: Iterable[str], feature: str) -> None:
    """Raise a ``RayVersionError`` about ``feature`` if an object of Ray lacks one of the members ``names``."""
    missing = [name for name in names if not hasattr(of_ray, name)]
    if missing:
        raise version_error(AttributeError(f"{type(of_ray).__name__} has no {', '.join(missing)}"), feature)


class Gone:
    """Replaces a name that this version of Ray lacks. Each use raises a ``RayVersionError``.

    ``feature`` is a noun phrase for the feature that needs the name.
    """

    def __init__(self, error: ImportError, feature: str) -> None:
        self._why, self._feature = error, feature

    def _raise(self, *args: object, **kwargs: object) -> NoReturn:
        raise version_error(self._why, self._feature) from self._why

    __call__ = __iter__ = __eq__ = __hash__ = __str__ = __format__ = __instancecheck__ = __subclasscheck__ = _raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python looks up such names, for instance to copy an object
            raise AttributeError(name)
        self._raise()

    def __or__(self, other: object) -> Any:
        """Allow types such as ``RunConfig | None``."""
        return object

    def __mro_entries__(self, bases: object) -> tuple[type]:
        """Allow subclasses, which cannot be instantiated."""
        return (type("Gone", (), {"__new__": self._raise}),)
