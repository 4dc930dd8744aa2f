"""The classes of policies by ``kind``, which is the name of the class in policy files.

The ``class`` statement of a policy registers the class, so there is no list of the kinds. The policies of this package
are imported first, so no other class can use their names. The base class imports this module.
"""

from inspect import isabstract
from typing import Any, Final

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import kind_of, shorten, suggest

_CLASSES: Final[dict[str, type[Any]]] = {}
"""The policy classes by name. ``__subclasses__`` would also return rejected classes."""


def register(cls: type[Any]) -> None:
    """Add a class to the kinds of policies.

    Raises:
        InvalidResourcesError: Another policy has the name of the class.
    """
    other = _CLASSES.get(cls.__name__)
    if other is None or isabstract(other) or _is_defined_again(other, cls):
        _CLASSES[cls.__name__] = cls
    elif not isabstract(cls):
        raise InvalidResourcesError(
            f"{cls.__module__}.{cls.__qualname__} has the same name as the policy {other.__module__}."
            f"{other.__qualname__}. Rename the class, because its name is the 'kind' in policy files"
        )


def _is_defined_again(earlier: type[Any], later: type[Any]) -> bool:
    """Return whether ``later`` redefines ``earlier``, that is, has the same module and qualified name."""
    names = {earlier.__qualname__, later.__qualname__}
    # While cloudpickle rebuilds a class in another process, the qualified name is only the name of the class.
    return earlier.__module__ == later.__module__ and (len(names) == 1 or later.__name__ in names)


def policies_by_kind() -> dict[str, type[Any]]:
    """Return all imported policy classes that can be instantiated, by ``kind``."""
    return {kind: cls for kind, cls in _CLASSES.items() if not isabstract(cls)}


def policy_of_kind(data: object) -> Any:
    """Build a policy from plain data with a ``kind``.

    Raises:
        InvalidResourcesError: ``data`` is not a mapping, its ``kind`` is missing or unknown, or a field is invalid.
    """
    kinds = policies_by_kind()
    if not isinstance(data, dict):
        raise InvalidResourcesError(f"a policy must be a mapping with a 'kind', got {kind_of(data)}")
    fields = dict(data)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        what = f"unknown kind {shorten(kind)}"
        if kind is None:
            what = "a policy requires a 'kind', such as kind: CpuPolicy"
        raise InvalidResourcesError(f"{what}{suggest(str(kind or ''), kinds)} (known: {', '.join(sorted(kinds))})")
    return kinds[kind].from_dict(fields)
