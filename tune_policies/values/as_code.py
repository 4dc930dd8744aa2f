"""The code that creates a value, for its ``repr``, for ``help`` and for notebooks: fields, arguments and signatures."""

import functools
import inspect
import json
import operator
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tune_policies.values.field_types import Checked


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
    if isinstance(value, datetime) and value.tzinfo is not None:
        return repr(value.replace(tzinfo=timezone(value.utcoffset() or timedelta())))  # not pydantic's own class
    return repr(value)


def written_fields(value: BaseModel) -> dict[str, Any]:
    """Return the fields that differ from their defaults, in the form in which users write them, such as ``"5GiB"``."""
    written = {}
    for name in own_fields_first(type(value)):
        field, content = type(value).model_fields[name], getattr(value, name)
        if field.is_required() or content != field.get_default(call_default_factory=True):
            written[name] = _as_written(field, content)
    return written


def given_defaults(value: BaseModel) -> dict[str, Any]:
    """Return the fields of a value with only defaults, without those that are empty or ``None``."""
    contents = {name: getattr(value, name) for name in own_fields_first(type(value))}
    fields = type(value).model_fields
    return {
        name: _as_written(fields[name], content) for name, content in contents.items() if content not in (None, (), {})
    }


def own_fields_first(cls: type[BaseModel]) -> list[str]:
    """Return the names of the fields in the order of the classes that define them, beginning with ``cls``."""
    defined = [inspect.get_annotations(base) for base in cls.__mro__]
    return sorted(cls.model_fields, key=lambda name: next(at for at, names in enumerate(defined) if name in names))


def readable_signature(cls: type[BaseModel]) -> inspect.Signature:
    """Return the signature of a class for ``help`` and tooltips: own fields first, and types without their checks."""
    signature = inspect.signature(cls)
    order = own_fields_first(cls)
    parameters = [
        parameter.replace(annotation=_plain_type(parameter.annotation), default=_plain_default(parameter.default))
        for parameter in signature.parameters.values()
    ]
    # A class with its own ``__init__`` keeps the order of its parameters, which users may pass by position.
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
    # Users write 4 CPUs and not 4.0.
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
