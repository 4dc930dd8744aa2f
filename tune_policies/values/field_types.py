"""The types of a value's fields: long tuples, mappings in alphabetical order, frozen mappings, and checked values.

Some lines exist only because saved clusters can be large. The docstring of ``value`` describes the load whose CPU time
their comments state.
"""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, ForwardRef, Literal, NoReturn, Self, TypeVar, get_args, get_origin

from pydantic import AfterValidator, FailFast, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

_Part = TypeVar("_Part")


class _AtFirstMistake(FailFast):
    def __hash__(self) -> int:  # pydantic's own class is not hashable, but ``| None`` requires a hash
        return hash(type(self))


Many = Annotated[tuple[_Part, ...], _AtFirstMistake()]
"""A tuple of any length. Only its first mistake is reported.

All mistakes in a million entries would take 5.6 s and 1.5 GiB of memory, instead of 0.06 s.
"""


def _by_name(mapping: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(mapping.items()))


ByName = Annotated[dict[str, _Part], AfterValidator(_by_name)]
"""A mapping in alphabetical order, so that equal mappings have the same JSON."""


class FrozenDict(dict[Any, Any]):
    """A dict that cannot be changed, so it has a hash. ``dict(frozen)`` is a copy that can be changed."""

    __slots__ = ()

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a mapping in a value cannot be changed. Create a changed copy of the value")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Self], tuple[dict[Any, Any]]]:
        return type(self), (dict(self),)  # otherwise, pickle and copy would set the items one by one


_EMPTY: Final = FrozenDict()


def frozen(value: Any) -> Any:
    """Return ``value`` with all mappings replaced by immutable mappings, also mappings inside mappings and tuples."""
    kind = type(value)
    if kind is str or kind is FrozenDict:  # checked first, because a check for ``Mapping`` is slow
        return value
    if kind is dict or isinstance(value, Mapping):
        if value:
            return FrozenDict({key: frozen(item) for key, item in value.items()})
        return _EMPTY
    if kind is tuple:
        return tuple(map(frozen, value))
    return value


def may_contain_mappings(annotation: Any) -> bool:
    """Return whether a field of this type may contain mappings that are not inside another value."""
    kind = get_origin(annotation) or annotation
    if kind in (Any, object) or isinstance(kind, str | ForwardRef | TypeVar):
        return True
    if kind is Literal:  # its arguments are values, not types
        return False
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return True
    return any(map(may_contain_mappings, get_args(annotation)))


class Checked:
    """An annotation for a field whose values the function ``check(value, name=field)`` validates.

    Values that match the core schema ``plain`` are accepted without calling ``check``. Without ``plain``, the file of
    100,000 nodes loads in 2.1 s instead of 1.5 s.
    The ``repr`` of the model contains ``show(value)``, such as an amount with its unit.
    """

    def __init__(
        self, check: Callable[..., Any], plain: CoreSchema | None = None, show: Callable[[Any], object] | None = None
    ) -> None:
        self._check = check
        self._plain = plain
        self.show = show

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        of_type = handler(source)
        checked = core_schema.with_info_before_validator_function(
            lambda value, info: self._check(value, name=info.field_name), of_type
        )
        if self._plain is None:
            return checked
        plain = core_schema.chain_schema([self._plain, of_type])  # the type can have further limits
        return core_schema.union_schema(
            [(plain, SchemaChoice.PLAIN), (checked, SchemaChoice.CHECKED)],
            mode="left_to_right",
            serialization=core_schema.simple_ser_schema("any"),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        if self._plain is not None:
            while schema["type"] != "union":  # later validators of the field wrap the union
                schema = schema["schema"]
            schema, _ = schema["choices"][1]
        return handler(schema)


class SchemaChoice(StrEnum):
    """The names of the two schemas of a checked field. Pydantic adds them to the location of an error."""

    PLAIN = "tune-policies: plain"
    CHECKED = "tune-policies: checked"


def check_names(names: object, *, name: str) -> tuple[str, ...]:
    """Return a list of names as a tuple, or raise an ``InvalidResourcesError``. A single string is not a list."""
    is_text = isinstance(names, str)
    if is_text or not isinstance(names, Collection) or not all(isinstance(item, str) for item in names):
        message = f"{name} must be a list of names, got {shorten(names)}"
        if is_text:
            message += f". Use [{shorten(names)}]"
        raise InvalidResourcesError(message)
    return tuple(names)
