"""The base class of all values, which are frozen, compared by content, and convertible to JSON and YAML.

Pydantic validates the fields. ``mistakes`` converts its error to an ``InvalidResourcesError``.

Some lines of this module and of ``field_types`` exist only because records and saved clusters can be large. Their
comments state the CPU time of ``ClusterCapacity.from_json`` for 100,000 nodes with two GPUs each (102 MB), which is
1.5 s (Python 3.11, pydantic 2.14, one core of an Intel Xeon).
"""

import functools
import gc
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tune_policies.values.as_code import as_code, given_defaults, written_fields
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.field_types import frozen, may_contain_mappings
from tune_policies.values.invalid_fields import ExplainedModel, arguments_by_name, explain
from tune_policies.values.wording import kind_of, most_similar, shorten, with_article

if TYPE_CHECKING:
    from rich.console import RenderableType


class Value(ExplainedModel):
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
            data = arguments_by_name(type(self), args, data)
        try:
            self.__pydantic_validator__.validate_python(data, self_instance=self)
        except ValidationError as error:
            raise explain(type(self), error) from None

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
        cls._with_mappings = tuple(name for name, field in fields if may_contain_mappings(field.annotation))

    def model_post_init(self, context: Any, /) -> None:
        """Freeze the mappings in the fields, including default values."""
        _freeze(self)

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Create a value from plain data, as read from YAML or JSON, or raise an ``InvalidResourcesError``."""
        if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
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
            raise explain(cls, error) from None

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed. New values are not validated. Cached properties are not copied."""
        copied = super().model_copy(update=update, deep=deep)
        _freeze(copied)
        for name in copied.__dict__.keys() - type(self).__pydantic_fields__.keys():
            del copied.__dict__[name]
        return copied

    def __setattr__(self, name: str, value: object) -> None:
        """Raise an ``InvalidResourcesError``, unless the attribute is private or a subclass is declared as mutable."""
        if name.startswith("_") or not self.model_config.get("frozen"):
            super().__setattr__(name, value)
        else:
            kind, field = type(self).__name__, name
            if name not in type(self).__pydantic_fields__:
                field = most_similar(name, type(self).__pydantic_fields__) or name
            raise InvalidResourcesError(
                f"{with_article(kind)} cannot be changed. Create a changed copy: "
                f"model_copy(update={{{field!r}: {shorten(value)}}})"
            )

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
        return fields_to_html(type(self).__name__, text, written_fields(self) or given_defaults(self))


def _freeze(value: Value) -> None:
    fields = value.__dict__
    for name in value._with_mappings:
        fields[name] = frozen(fields[name])


def _explaining_call(init: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` that reports missing, unknown or repeated arguments in the same form as invalid fields."""

    @functools.wraps(init)
    def explaining(self: Value, /, *args: Any, **data: Any) -> None:
        try:
            init(self, *args, **data)
        except TypeError:
            # Report all missing and unknown arguments.
            Value.__init__(self, **arguments_by_name(type(self), args, data))
            raise

    return explaining


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
