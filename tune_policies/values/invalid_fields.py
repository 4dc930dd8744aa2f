"""The error about the invalid arguments and fields of a value.

A single ``InvalidResourcesError`` lists all mistakes, each with the field, its value, and the valid fields if the field
is unknown.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from tune_policies.values.as_code import own_fields_first
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.field_types import SchemaChoice
from tune_policies.values.sanitize import one_line
from tune_policies.values.wording import counted, kind_of, shorten, suggest

_MOST_MISTAKES: Final = 20
"""The maximum number of mistakes in a message. A file of another format can cause any number of mistakes."""


class ExplainedModel(BaseModel, defer_build=True):
    """A model that may give a hint about an unknown field. The base class of ``Value``, which imports this module."""

    @classmethod
    def _hint_for(cls, field: str, value: object) -> str:
        """Return what to write instead of an unknown field, or an empty string if its name may be misspelled."""
        return ""


def explain(cls: type[ExplainedModel], error: ValidationError) -> InvalidResourcesError:
    """Return an error with one line per mistake, also for nested values. Each list of valid fields is shown once."""
    # A checked field is a union of two schemas, and pydantic reports the mistake once for each of them.
    details = [detail for detail in error.errors() if SchemaChoice.PLAIN not in detail["loc"]]
    mistakes = [mistake for detail in details[:_MOST_MISTAKES] for mistake in _mistakes(cls, detail)]
    lines, listed = [], {""}
    for message, fields in mistakes[:_MOST_MISTAKES]:
        text = message if fields in listed else f"{message} ({fields})"
        lines.append(one_line(text))
        listed.add(fields)
    more = max(0, len(mistakes) - _MOST_MISTAKES) + max(0, len(details) - _MOST_MISTAKES)
    if more:
        lines.append(f"and {counted(more, 'more mistake')}")
    explained = InvalidResourcesError("\n".join(lines))
    explained.mistakes = tuple(mistakes)
    return explained


def _mistakes(cls: type[ExplainedModel], detail: Any) -> Iterator[tuple[str, str]]:
    """Yield a pair for each mistake: the message, and the valid fields if the field is unknown, or ``""``."""
    path = [str(part) for part in detail["loc"] if part != SchemaChoice.CHECKED]
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
                known = f"{owner.__name__} has {', '.join(own_fields_first(owner))}"
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


def _class_at(cls: type[ExplainedModel], path: Sequence[str]) -> type[ExplainedModel]:
    for part in path:
        field = cls.model_fields.get(part)
        if field is not None:
            cls = next(values_in(field.annotation), cls)
    return cls


def values_in(annotation: Any) -> Iterator[type[ExplainedModel]]:
    """Yield the classes of values in a field's type, such as ``tuple[Resources, ...] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, ExplainedModel):
        yield annotation
    for argument in get_args(annotation):
        yield from values_in(argument)


def arguments_by_name(cls: type[ExplainedModel], args: Sequence[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments by name. Raise ``InvalidResourcesError`` if one is repeated or too many are positional."""
    parameters = inspect.signature(cls).parameters.values()
    # Such a class accepts any number of positional arguments, so only a name can be wrong.
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        if args and "policies" in cls.model_fields:  # the field that these classes fill from positional arguments
            return {"policies": args, **data}
        return dict(data)
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names):
        others = [name for name in own_fields_first(cls) if name not in names]
        meant = dict(zip([*names, *others], args, strict=False))
        called = _as_arguments(cls, {name: value for name, value in meant.items() if name not in data}, data)
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


def _as_arguments(cls: type[ExplainedModel], meant: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    """Return arguments as code, without their values if a call with them would raise an error."""
    try:
        cls(**meant, **others)
    except InvalidResourcesError:
        return ", ".join(f"{name}=…" for name in meant)
    return ", ".join(f"{name}={shorten(value)}" for name, value in meant.items())
