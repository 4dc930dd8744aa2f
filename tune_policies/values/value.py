"""The base class of all values, which are frozen, compared by content, and convertible to JSON and YAML.

Pydantic validates the fields. A single ``InvalidResourcesError`` lists all mistakes, each with the field, its value,
and the valid fields if the field is unknown.

Some lines of this module exist only because records and saved clusters can be large. Their comments state the CPU time
of ``ClusterCapacity.from_json`` for 100,000 nodes with two GPUs each (102 MB), which is 1.5 s (Python 3.11, pydantic
2.14, one core of an Intel Xeon).
"""

import functools
import gc
import inspect
import json
import operator
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    ForwardRef,
    Literal,
    NoReturn,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

_MOST_NAMES: Final = 5

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


def counted(count: int, noun: str) -> str:
    """Return the count with its noun, such as ``"1 node"`` or ``"3 nodes"``."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"


def shorten_names(names: Sequence[str]) -> str:
    """Return the names as one line. If there are more than five, return five and the number of further names."""
    shown = ", ".join(names[:_MOST_NAMES])
    if len(names) <= _MOST_NAMES:
        return shown
    return f"{shown} and {len(names) - _MOST_NAMES} more"


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


def _may_contain_mappings(annotation: Any) -> bool:
    """Return whether a field of this type may contain mappings that are not inside another value."""
    kind = get_origin(annotation) or annotation
    if kind in (Any, object) or isinstance(kind, str | ForwardRef | TypeVar):
        return True
    if kind is Literal:  # its arguments are values, not types
        return False
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return True
    return any(map(_may_contain_mappings, get_args(annotation)))


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
            [(plain, _Choice.PLAIN), (checked, _Choice.CHECKED)],
            mode="left_to_right",
            serialization=core_schema.simple_ser_schema("any"),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> Any:
        if self._plain is not None:
            while schema["type"] != "union":  # later validators of the field wrap the union
                schema = schema["schema"]
            schema, _ = schema["choices"][1]
        return handler(schema)


class _Choice(StrEnum):
    """The names of the two schemas of a checked field. Pydantic adds them to the location of an error."""

    PLAIN = "tune-policies: plain"
    CHECKED = "tune-policies: checked"


class Value(BaseModel):
    """A frozen model whose errors name the invalid field, the value and the fix.

    Mappings in its fields are frozen too, so a value has a hash if its fields contain no lists and no sets.
    """

    # A trial's process imports many classes and creates few values, so each schema is built when it is first needed.
    # The import of ``trainers.process.trial_process`` takes 75 ms instead of 83 ms, without the time for Ray.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    _with_mappings: ClassVar[tuple[str, ...]] = ()
    """The names of the fields that may contain mappings."""

    def __init__(self, /, *args: Any, **data: Any) -> None:
        if args:
            data = _with_names(type(self), args, data)
        try:
            self.__pydantic_validator__.validate_python(data, self_instance=self)
        except ValidationError as error:
            raise _explain(type(self), error) from None

    # Pydantic derives the signature of each class from the signature of this ``__init__``.
    __init__.__signature__ = inspect.signature(BaseModel.__init__)  # type: ignore[attr-defined]
    # With this private mark, pydantic itself creates the values inside a value. Otherwise, it would call __init__ for
    # each of them. Errors would contain parts of paths, and the file of 100,000 nodes would load in 2.4 s.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            cls.__init__ = _explaining_call(cls.__init__)  # type: ignore[method-assign]

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        fields = cls.__pydantic_fields__.items()
        cls._with_mappings = tuple(name for name, field in fields if _may_contain_mappings(field.annotation))

    def model_post_init(self, context: Any, /) -> None:
        """Freeze the mappings in the fields, including default values."""
        _freeze(self)

    @classmethod
    def _hint_for(cls, field: str, value: object) -> str:
        """Return what to write instead of an unknown field, or an empty string if its name may be misspelled."""
        return ""

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Create a value from plain data, as read from YAML or JSON, or raise an ``InvalidResourcesError``."""
        if not isinstance(data, dict) or not _has_names(data):
            raise InvalidResourcesError(
                f"{cls.__name__} must be a mapping of field names to values, got {kind_of(data)}"
            )
        return cls(**data)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Create a value from the output of :meth:`to_json`, or raise an ``InvalidResourcesError``."""
        try:
            with collector_paused():
                return cls.model_validate_json(text)
        except ValidationError as error:
            raise _explain(cls, error) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed. New values are not validated. Cached properties are not copied."""
        copied = super().model_copy(update=update, deep=deep)
        _freeze(copied)
        for name in copied.__dict__.keys() - type(self).__pydantic_fields__.keys():
            del copied.__dict__[name]
        return copied

    def to_json(self) -> str:
        """Return the value as indented JSON."""
        return self.model_dump_json(indent=2)

    def __repr__(self) -> str:
        """Return the call that creates the value, with the fields that differ from their defaults."""
        arguments = (f"{name}={as_code(value)}" for name, value in written_fields(self).items())
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        from tune_policies.values.html import fields_to_html  # notebooks only

        has_own_text = type(self).__str__ is not Value.__str__
        text = str(self) if has_own_text else ""
        return fields_to_html(type(self).__name__, text, written_fields(self) or _given_defaults(self))


def written_fields(value: Value) -> dict[str, Any]:
    """Return the fields that differ from their defaults, in the form in which users write them, such as ``"5GiB"``."""
    written = {}
    for name in _own_fields_first(type(value)):
        field, content = type(value).model_fields[name], getattr(value, name)
        if field.is_required() or content != field.get_default(call_default_factory=True):
            written[name] = _as_written(field, content)
    return written


def _given_defaults(value: Value) -> dict[str, Any]:
    """Return the fields of a value with only defaults, without those that are empty or ``None``."""
    contents = {name: getattr(value, name) for name in _own_fields_first(type(value))}
    fields = type(value).model_fields
    return {
        name: _as_written(fields[name], content) for name, content in contents.items() if content not in (None, (), {})
    }


def as_code(value: object) -> str:
    """Return the Python expression for a value, with double quotes around text."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{as_code(key)}: {as_code(item)}' for key, item in value.items())}}}"
    if isinstance(value, tuple):
        items = ", ".join(map(as_code, value))
        if len(value) == 1:
            return f"({items},)"
        return f"({items})"
    return repr(value)


def readable_signature(cls: type[Value]) -> inspect.Signature:
    """Return the signature of a class for ``help`` and tooltips: own fields first, and types without their checks."""
    signature = inspect.signature(cls)
    order = _own_fields_first(cls)
    parameters = [
        parameter.replace(annotation=_plain_type(parameter.annotation), default=_plain_default(parameter.default))
        for parameter in signature.parameters.values()
    ]
    if all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters):
        parameters.sort(key=lambda parameter: order.index(parameter.name))
    return signature.replace(parameters=parameters)


def _plain_type(annotation: Any) -> Any:
    """Return a type without the checks in ``Annotated``."""
    if hasattr(annotation, "__metadata__"):
        return _plain_type(annotation.__origin__)
    parts = get_args(annotation)
    if not parts or get_origin(annotation) is Literal:
        return annotation
    plain = tuple(_plain_type(part) for part in parts)
    if get_origin(annotation) in (Union, UnionType):
        return functools.reduce(operator.or_, plain)
    if plain == parts:
        return annotation
    return get_origin(annotation)[plain]


def _plain_default(default: Any) -> Any:
    """Return the default of a parameter, with an empty mapping for pydantic's mark of a computed default."""
    if repr(default) == "<factory>":
        return {}
    return default


def _as_written(field: FieldInfo, content: object) -> object:
    show = next((check.show for check in _checks_in(field.metadata, field.annotation) if check.show), None)
    if show is not None and isinstance(content, int):
        return show(content)
    if isinstance(content, float) and content.is_integer():
        return int(content)
    return content


def _checks_in(metadata: Iterable[object], annotation: Any) -> Iterator[Checked]:
    """Yield the checks of a field, also those of a part of its type, such as ``Memory | None``."""
    for part in metadata:
        if isinstance(part, Checked):
            yield part
    for part in get_args(annotation):
        yield from _checks_in(getattr(part, "__metadata__", ()), part)


def _freeze(value: Value) -> None:
    fields = value.__dict__
    for name in value._with_mappings:
        fields[name] = frozen(fields[name])


class ShownValue(Value):
    """A value that ``print``, ``rich.print`` and notebooks display as tables."""

    @abstractmethod
    def __rich__(self) -> "RenderableType":
        """Return the tables. The method imports the module that builds them, because that module imports the value."""

    def __str__(self) -> str:
        from tune_policies.files.terminal import to_text  # only if the value is printed

        return to_text(self.__rich__())

    def _repr_html_(self) -> str:
        from tune_policies.values.html import to_html  # notebooks only

        return to_html(self.__rich__())


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector, which would otherwise scan thousands of new values repeatedly.

    Without the pause, the file of 100,000 nodes loads in 3.5 s instead of 1.5 s.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # Move the values to the oldest generation without scanning them, which would take 0.4 s for the same file.
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _explaining_call(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that reports missing, unknown or repeated arguments in the same form as invalid fields."""

    @functools.wraps(init)
    def explaining(self: Value, /, *args: Any, **data: Any) -> None:
        try:
            init(self, *args, **data)
        except TypeError:
            Value.__init__(self, **_with_names(type(self), args, data))  # reports all missing and unknown arguments
            raise

    return explaining


def _with_names(cls: type[Value], args: Sequence[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments by name. Raise ``InvalidResourcesError`` if one is repeated or too many are positional."""
    parameters = inspect.signature(cls).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return dict(data)
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names):
        called = ", ".join(
            f"{name}={shorten(value)}"
            for name, value in zip(_own_fields_first(cls), args, strict=False)
            if name not in data
        )
        accepts = "accepts its fields only by name"
        if names:
            accepts = f"accepts {', '.join(names)} by position"
        raise InvalidResourcesError(
            f"{cls.__name__} {accepts}, got {counted(len(args), 'argument')} without a name. "
            f"Write {cls.__name__}({called})"
        )
    by_position = dict(zip(names, args, strict=False))
    twice = sorted(data.keys() & by_position.keys())
    if twice:
        verb = "was" if len(twice) == 1 else "were"
        raise InvalidResourcesError(
            f"{', '.join(twice)} {verb} passed twice, by position and by name. Pass each field only once"
        )
    return {**by_position, **data}


def _own_fields_first(cls: type[Value]) -> list[str]:
    """Return the names of the fields in the order of the classes that define them, beginning with ``cls``."""
    defined = [inspect.get_annotations(base) for base in cls.__mro__]
    return sorted(cls.model_fields, key=lambda name: next(at for at, names in enumerate(defined) if name in names))


def _has_names(data: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) for key in data)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'A100'?"`` for the known name that is most similar to ``name``, or ``""``."""
    near = most_similar(name, known)
    if near is None:
        return ""
    return f"; did you mean {near!r}?"


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to ``name``, or ``None`` if no name is similar."""
    import difflib  # imported here, because only errors need it

    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    # "price" stands for "price_per_hour", if no other known name begins with it.
    longer = [candidate for candidate in by_lower if candidate.startswith(f"{name.lower()}_")]
    if not near and len(longer) == 1:
        near = longer
    if near:
        return by_lower[near[0]]
    return None


def check_names(names: object, *, name: str) -> tuple[str, ...]:
    """Return a list of names as a tuple, or raise an ``InvalidResourcesError``. A single string is not a list."""
    is_text = isinstance(names, str)
    if is_text or not isinstance(names, Collection) or not all(isinstance(item, str) for item in names):
        message = f"{name} must be a list of names, got {shorten(names)}"
        if is_text:
            message += f". Use [{shorten(names)}]"
        raise InvalidResourcesError(message)
    return tuple(names)


_MOST_MISTAKES: Final = 20
"""The maximum number of mistakes in a message. A file of another format can cause any number of mistakes."""


def _explain(cls: type[Value], error: ValidationError) -> InvalidResourcesError:
    """Return an error with one line per mistake, also for nested values. Each list of valid fields is shown once."""
    details = [detail for detail in error.errors() if _Choice.PLAIN not in detail["loc"]]
    mistakes = [mistake for detail in details[:_MOST_MISTAKES] for mistake in _mistakes(cls, detail)]
    lines, listed = [], {""}
    for message, fields in mistakes[:_MOST_MISTAKES]:
        text = message if fields in listed else f"{message} ({fields})"
        lines.append(one_line(text))
        listed.add(fields)
    more = max(0, len(mistakes) - _MOST_MISTAKES) + max(0, len(details) - _MOST_MISTAKES)
    if more:
        lines.append(f"and {more} more mistakes")
    explained = InvalidResourcesError("\n".join(lines))
    explained.mistakes = tuple(mistakes)
    return explained


def _mistakes(cls: type[Value], detail: Any) -> Iterator[tuple[str, str]]:
    """Yield a pair for each mistake: the message, and the valid fields if the field is unknown, or ``""``."""
    path = [str(part) for part in detail["loc"] if part != _Choice.CHECKED]
    *parents, field = path or [""]
    location, inside = ".".join(path), ""
    if parents:
        inside = f"{'.'.join(parents)}: "
    owner = _class_at(cls, parents)
    match detail["type"]:
        case "value_error":  # an error of this package, with a complete message
            error = detail["ctx"]["error"]
            for message, fields in getattr(error, "mistakes", ()) or ((str(error), ""),):
                where = inside if not field or message.startswith(field) else f"{location}: "
                yield f"{where}{message}", fields
        case "extra_forbidden":
            fields = owner.model_fields
            known = ""
            if fields:
                known = f"{owner.__name__} has {', '.join(_own_fields_first(owner))}"
            hint = owner._hint_for(field, detail["input"]) or suggest(field, fields)
            yield f"{inside}unknown field {shorten(field)}{hint}", known
        case "too_long":
            limit, number = detail["ctx"]["max_length"], detail["ctx"]["actual_length"]
            got = "more" if number is None else f"{number:,}"
            yield f"{location} may have at most {limit:,} entries, got {got}", ""
        case "missing":
            yield f"{inside}the required field {field!r} of {owner.__name__} is missing", ""
        case kind:
            got = shorten(detail["input"])
            if not location or kind == "model_type":  # do not quote an entire file
                got = kind_of(detail["input"])
            yield f"{location or cls.__name__}: {detail['msg']}, got {got}", ""


def _class_at(cls: type[Value], path: Sequence[str]) -> type[Value]:
    for part in path:
        field = cls.model_fields.get(part)
        if field is not None:
            cls = next(_values_in(field.annotation), cls)
    return cls


def _values_in(annotation: Any) -> Iterator[type[Value]]:
    """Yield the subclasses of ``Value`` in a field's type, such as ``tuple[Resources, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, Value):
        yield annotation
    for argument in get_args(annotation):
        yield from _values_in(argument)


def kind_of(data: object) -> str:
    """Return a description of the type of ``data``, without its content."""
    match data:
        case None:
            return "nothing"
        case str():
            return "a string"
        case dict():
            if _has_names(data):
                return "a mapping"
            return "a mapping whose keys are not names"
        case list() | tuple():
            return "a list"
        case _:
            return f"a value of type {type(data).__name__}"


def shorten(data: object) -> str:
    """Return the ``repr`` of ``data``, shortened to at most 80 characters."""
    try:
        text = repr(data)
    except ValueError:  # Python does not convert integers with thousands of digits to strings
        return f"a value of type {type(data).__name__} that is too long to show"
    if len(text) <= 80:
        return text
    return f"{text[:77]}..."
