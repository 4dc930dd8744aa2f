"""The classes of policies by ``kind``, which is the name of the class in policy files.

The ``class`` statement of a policy registers the class, so there is no list of the kinds. The policies of this package
are imported first, so no other class can use their names. The base class imports this module.
"""

from inspect import isabstract
from typing import Any, Final, get_args

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.invalid_fields import values_in
from tune_policies.values.wording import kind_of, shorten, shorten_names, suggest

_CLASSES: Final[dict[str, type[Any]]] = {}
"""The policy classes by name. ``__subclasses__`` would also return rejected classes."""


def register(cls: type[Any]) -> None:
    """Add a class to the kinds of policies.

    Raises:
        InvalidResourcesError: Another policy has the name of the class.
    """
    other = _CLASSES.get(cls.__name__)
    # An abstract class has no kind, so it takes no name from others.
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


def hint_to_owners(field: str) -> str:
    """Return which policies of this package have a field, other than for policies inside them, or an empty string."""
    owners = []
    for kind, cls in sorted(policies_by_kind().items()):
        has_field = cls.__module__.startswith("tune_policies.") and field in cls.model_fields
        if has_field and not any("plan" in vars(part) for part in values_in(cls.model_fields[field].annotation)):
            owners.append(kind)
    if not owners:
        return ""
    return f". It is a field of {shorten_names(owners)}"


def instead_of_class(value: object) -> str:
    """Return what to write instead of a policy class, or of ``GpuPolicy | CpuPolicy``, or an empty string."""
    classes = get_args(value) or (value,)
    known = policies_by_kind().values()
    if any(cls not in known for cls in classes):
        return ""
    written = " | ".join(f"{cls.__name__}(…)" for cls in classes)
    noun = "class" if len(classes) == 1 else "classes"
    return f". Write {written} instead of the {noun}"


def policy_of_kind(data: object) -> Any:
    """Build a policy from plain data with a ``kind``.

    Raises:
        InvalidResourcesError: ``data`` is not a mapping, its ``kind`` is missing or unknown, or a field is invalid.
    """
    kinds = policies_by_kind()
    if not isinstance(data, dict):
        hint = instead_of_class(data)
        raise InvalidResourcesError(f"a policy must be a mapping with a 'kind', got {kind_of(data)}{hint}")
    fields = dict(data)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        what = f"unknown kind {shorten(kind)}"
        if kind is None:
            what = "a policy requires a 'kind', such as kind: CpuPolicy"
        raise InvalidResourcesError(f"{what}{suggest(str(kind or ''), kinds)} (known: {', '.join(sorted(kinds))})")
    return kinds[kind].from_dict(fields)
