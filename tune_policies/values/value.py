"""The base of every value here: frozen, compared by content, and the same in Python, YAML and JSON.

Pydantic checks the fields. What it finds reaches the user as one ``InvalidResourcesError`` that lists all
mistakes, each with its field, what was given, and the fields that exist.

Clusters have ten thousands of values, so sound ones are checked by compiled code alone: see :class:`Checked`. Only
where something is wrong, all is checked again by the functions of this project, which say what.
"""

import difflib
import gc
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, SchemaValidator, core_schema

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line

_MOST: Final = 5

_Part = TypeVar("_Part")


class _AtFirstMistake(FailFast):
    def __hash__(self) -> int:  # which pydantic's own lacks, and ``| None`` needs
        return hash(type(self))


Many = Annotated[tuple[_Part, ...], _AtFirstMistake()]
"""As many parts as a program has written. Only the first that is wrong is told: with a million, to tell all takes
gigabytes."""


def counted(count: int, noun: str) -> str:
    """Return the noun with its number: ``"1 node"``, ``"3 nodes"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shorten_names(names: Sequence[str]) -> str:
    """Return the names in one line; of many only the first five."""
    shown = ", ".join(names[:_MOST])
    return shown if len(names) <= _MOST else f"{shown} and {len(names) - _MOST} more"


_MOST_MISTAKES = 20
"""Whoever has more of them has given another file, which may have any number."""


_QUICK: Final = "tune_policies_quick"
"""Marks in a schema that its first choice takes what is surely sound, and that its last one says what is wrong."""


@dataclass(frozen=True, eq=False)
class Checked:
    """How a field is checked: by compiled code, and what that does not take, by a function.

    Attributes:
        check: Takes a value and the ``name`` of its field, and returns the sound value.
        quick: Takes no value that ``check`` refuses or changes.
    """

    check: Callable[..., Any]
    quick: CoreSchema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        named = BeforeValidator(lambda value, info: self.check(value, name=str(info.field_name)))
        choices: list[CoreSchema | tuple[CoreSchema, str]] = [
            self.quick,
            named.__get_pydantic_core_schema__(source, handler),
        ]
        either = core_schema.union_schema(choices, mode="left_to_right", metadata={_QUICK: True})
        return core_schema.chain_schema([either, handler(source)])  # the last step says how it is written

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        while "steps" not in schema:  # a further check stands around it
            schema = schema["schema"]
        return handler(schema["steps"][-1])


_NO_FIELDS: Final[set[str]] = set()


class Value(BaseModel):
    """A frozen value that explains a wrong field instead of quoting a schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, /, *args: Any, **data: Any) -> None:
        if args:
            data = _by_name(type(self), args, data)
        try:
            if _IS_EXPLAINING.get():
                _check(type(self), data)
                with _explaining(False):  # all that stands inside is sound, then
                    self.__pydantic_validator__.validate_python(data, self_instance=self)
            else:
                self.__pydantic_validator__.validate_python(data, self_instance=self)
        except ValidationError as error:
            raise _explained(type(self), error, data) from None
        # Which fields were given, nobody asks. A set for each of 40,000 values keeps the garbage collector busy.
        object.__setattr__(self, "__pydantic_fields_set__", _NO_FIELDS)

    # Pydantic may leave the call out for values inside others, and shows this as the signature.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]
    __init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY),
            inspect.Parameter("data", inspect.Parameter.VAR_KEYWORD),
        ]
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _explaining_call(cls.__init__)  # type: ignore[method-assign]

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Build the value from plain data, as read from YAML or JSON.

        Raises:
            InvalidResourcesError: ``data`` is not a mapping, or a field of it is wrong.
        """
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise InvalidResourcesError(
                f"{cls.__name__} must be a mapping of field names to values, got {kind_of(data)}"
            )
        return cls(**data)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Build the value from what :meth:`to_json` wrote.

        Raises:
            InvalidResourcesError: ``text`` is not JSON, or not this value.
        """
        try:
            with collector_paused():
                return cls.model_validate_json(text)
        except ValidationError as error:
            raise _explained(cls, error, text) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed, unchecked, without what the original has computed and kept."""
        cls = type(self)
        if deep or self.__pydantic_private__ or self.__pydantic_extra__:  # which a user's own policy may have
            whole = super().model_copy(update=update, deep=deep)
            for name in whole.__dict__.keys() - cls.__pydantic_fields__.keys():
                del whole.__dict__[name]
            return whole
        copied, kept = cls.__new__(cls), self.__dict__
        # Without cached properties, which would still answer for the original.
        values = {name: kept[name] for name in cls.__pydantic_fields__}
        # As pydantic's own copy does, which for thousands of nodes takes four times as long.
        object.__setattr__(copied, "__dict__", values if update is None else {**values, **update})
        object.__setattr__(copied, "__pydantic_fields_set__", _NO_FIELDS)
        object.__setattr__(copied, "__pydantic_extra__", None)
        object.__setattr__(copied, "__pydantic_private__", None)
        return copied

    def to_json(self) -> str:
        """Return the value as indented JSON."""
        return self.model_dump_json(indent=2)


class ShownValue(Value):
    """A value that is tables under ``rich.print``, and in a notebook.

    What shows a value knows it, and so stands above it: the value names it, as ``module:function``, without an import.
    """

    _view: ClassVar[str]

    def __rich__(self) -> Any:
        module, _, function = self._view.partition(":")
        return getattr(import_module(module), function)(self)

    def _repr_html_(self) -> str:
        return cast("str", import_module("tune_policies.views.html").to_html(self.__rich__()))


@contextmanager
def collector_paused() -> Iterator[None]:
    """Hold the garbage collector off while thousands of values are made: it would go through all again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _explaining_call(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that explains arguments which are not those of its signature, as it does a wrong field."""

    @wraps(init)
    def explaining(self: Value, /, *args: Any, **data: Any) -> None:
        try:
            init(self, *args, **data)
        except TypeError:
            # All mistakes at once: what is missing and what is unknown, as in a file.
            Value.__init__(self, **_by_name(type(self), args, data))
            raise

    return explaining


_IS_EXPLAINING: Final = ContextVar("is_explaining", default=False)
"""Whether what is built stands inside something that is known to be wrong."""


@contextmanager
def _explaining(is_explaining: bool) -> Iterator[None]:
    token = _IS_EXPLAINING.set(is_explaining)
    try:
        yield
    finally:
        _IS_EXPLAINING.reset(token)


def _explained(cls: type[Value], error: ValidationError, data: dict[str, Any] | str | bytes) -> InvalidResourcesError:
    """Return what is wrong with ``data``: fields by name, or JSON."""
    if any(detail["loc"] for detail in error.errors(include_url=False, include_input=False)):
        try:
            _check(cls, data)
        except InvalidResourcesError as explained:
            return explained
    return _explain(cls, error)


def _check(cls: type[Value], data: dict[str, Any] | str | bytes) -> None:
    """Check each field by the function that says what is wrong.

    Raises:
        InvalidResourcesError: A field is wrong.
    """
    validator = _explaining_validator(cls)
    try:
        with _explaining(True):
            validator.validate_python(data) if isinstance(data, dict) else validator.validate_json(data)
    except ValidationError as error:
        raise _explain(cls, error) from None
    except TypeError:
        # A mapping inside another reaches its `__init__` as keyword arguments, which Python takes with texts only.
        for name, mapping in _mappings_with_other_keys(data):
            raise InvalidResourcesError(
                f"{name} must be a mapping of field names to values, got {shorten(mapping)}"
            ) from None
        raise


@cache
def _explaining_validator(cls: type[Value]) -> SchemaValidator:
    """Return what finds the mistakes in the fields of a class, each told by the value in which it is."""
    found: Any = cls.__pydantic_core_schema__
    definitions = found.get("definitions", [])
    while found["type"] != "model":
        found = found["schema"]
    fields = core_schema.definitions_schema(_explaining_schema(found["schema"]), _explaining_schema(definitions))
    return SchemaValidator(fields, found.get("config"))


def _explaining_schema(schema: Any) -> Any:
    """Return the schema with each value inside built by its class, and each field checked by its function."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_explaining_schema, schema))
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "model" and issubclass(schema["cls"], Value):
        return core_schema.no_info_plain_validator_function(partial(_build, schema["cls"]), ref=schema.get("ref"))
    if _QUICK in (schema.get("metadata") or {}):
        return _explaining_schema(schema["choices"][-1])
    return {key: _explaining_schema(each) for key, each in schema.items()}


def _build(cls: type[Value], data: object) -> Value:
    if isinstance(data, cls):
        return data
    if not isinstance(data, dict):
        raise PydanticKnownError("model_type", {"class_name": cls.__name__})
    return cls(**data)


def _by_name(cls: type[Value], args: Sequence[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name.

    Raises:
        InvalidResourcesError: There are more by position than the class takes, or one comes twice.
    """
    parameters = inspect.signature(cls).parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        return dict(data)
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names):
        called = ", ".join(
            f"{name}={shorten(value)}" for name, value in zip(cls.model_fields, args, strict=False) if name not in data
        )
        takes = f"takes {', '.join(names)} by position" if names else "takes its fields by name"
        raise InvalidResourcesError(
            f"{cls.__name__} {takes}, got {counted(len(args), 'argument')} without a name: "
            f"write {cls.__name__}({called})"
        )
    if twice := sorted(data.keys() & set(names[: len(args)])):
        raise InvalidResourcesError(f"{', '.join(twice)} given twice: by position and by name")
    return {**dict(zip(names, args, strict=False)), **data}


def _mappings_with_other_keys(data: object) -> Iterator[tuple[str, object]]:
    """Yield the mappings inside ``data`` with keys that are no texts, each with where it is."""
    inside: list[tuple[str, object]] = [("", data)]
    seen: set[int] = set()
    while inside:
        name, value = inside.pop()
        if id(value) in seen or not isinstance(value, dict | list | tuple):
            continue
        seen.add(id(value))
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            yield name, value
        items = value.items() if isinstance(value, dict) else enumerate(value)
        inside += [(f"{name}.{key}" if name else str(key), each) for key, each in items]


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'A100'?"`` for the known name nearest to ``name``, or ``""``."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def check_names(names: object, *, name: str) -> tuple[str, ...]:
    """Return ``names`` as a tuple.

    Raises:
        InvalidResourcesError: ``names`` is not a list of texts. A single text would be iterated letter by letter.
    """
    is_text = isinstance(names, str)
    if is_text or not isinstance(names, Collection) or not all(isinstance(each, str) for each in names):
        hint = f". Use [{shorten(names)}]" if is_text else ""
        raise InvalidResourcesError(f"{name} must be a list of names, got {shorten(names)}{hint}")
    return tuple(names)


def _explain(cls: type[Value], error: ValidationError) -> InvalidResourcesError:
    """Return the error with a line for each mistake, also of the values inside, and each list of fields once."""
    details = error.errors()
    mistakes = [mistake for detail in details[:_MOST_MISTAKES] for mistake in _explain_one(cls, detail)]
    lines, listed = [], {""}
    for message, fields in mistakes[:_MOST_MISTAKES]:
        lines.append(one_line(message if fields in listed else f"{message} ({fields})"))
        listed.add(fields)
    more = max(0, len(mistakes) - _MOST_MISTAKES) + max(0, len(details) - _MOST_MISTAKES)
    explained = InvalidResourcesError("\n".join([*lines, *([f"and {more} more mistakes"] if more else [])]))
    explained.mistakes = tuple(mistakes)
    return explained


def _explain_one(cls: type[Value], detail: Any) -> Iterator[tuple[str, str]]:
    """Yield the message of each mistake, and the fields that exist if a field is unknown."""
    location = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "value_error":  # raised by one of our own checks: the message is complete
            error = detail["ctx"]["error"]
            for message, fields in getattr(error, "mistakes", ()) or ((str(error), ""),):
                names_its_field = len(detail["loc"]) == 1 and message.startswith(location)
                yield message if not location or names_its_field else f"{location}: {message}", fields
        case "extra_forbidden":
            name = str(detail["loc"][-1])
            fields = cls.model_fields if len(detail["loc"]) == 1 else {}
            known = f"{cls.__name__} has {', '.join(fields)}" if fields else ""
            yield f"unknown field {shorten(location)}{suggest(name, fields)}", known
        case "too_long":
            limit, number = detail["ctx"]["max_length"], detail["ctx"]["actual_length"]
            yield (
                f"{location} may have at most {limit:,} entries, got {'more' if number is None else f'{number:,}'}",
                "",
            )
        case "missing":
            yield f"{cls.__name__} needs {location!r}, which is missing", ""
        case _ if not location or detail["type"] == "model_type":  # perhaps another file, whose content stays out
            yield f"{location or cls.__name__}: {detail['msg']}, got {kind_of(detail['input'])}", ""
        case _:
            yield f"{location or cls.__name__}: {detail['msg']}, got {shorten(detail['input'])}", ""


def kind_of(data: object) -> str:
    """Return what ``data`` is, without what stands in it: where a mapping is due, it may be any file."""
    match data:
        case None:
            return "nothing"
        case str():
            return "a text"
        case dict():
            return "a mapping" if all(isinstance(key, str) for key in data) else "a mapping whose keys are not names"
        case list() | tuple():
            return "a list"
        case _:
            return f"a value of type {type(data).__name__}"


def shorten(data: object) -> str:
    """Return ``data`` as it would be written in Python, cut where it is long."""
    try:
        text = repr(data)
    except ValueError:  # Python refuses to write out a number of thousands of digits
        return f"a {type(data).__name__} that is too long to show"
    return text if len(text) <= 80 else f"{text[:77]}..."
