"""The interface of all policies, and the form of a policy as plain data.

In YAML and JSON a policy is a mapping. Its ``kind`` is the name of its class, and the other keys are the fields. A
user's own subclass of ``ResourcePolicy`` has a ``kind`` as soon as it is imported. The package's own policies are
imported first, so no later class can have one of their names.
"""

import functools
import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import isabstract
from itertools import chain
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.files.plain_data import parse_json
from tune_policies.placement.packing import Request, with_rounded_memory
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import CustomAmounts, Memory, Resources, WorkerCount
from tune_policies.values.value import Value, kind_of, shorten, suggest

_DEEPEST: Final = 32
"""The deepest nesting of policies. Each level needs about ten nested calls, and Python allows 1000."""

_MOST_POLICIES: Final = 256
"""The most policies in one policy, because all of them may have to plan."""

_TOO_DEEP: Final = f"more than {_DEEPEST} policies are nested: remove some of them"

_CLASSES: Final[dict[str, type["ResourcePolicy"]]] = {}
"""The classes of policies by name. ``__subclasses__`` is no substitute, because it includes rejected classes."""


def _with_inherited_fields(cls: type["ResourcePolicy"]) -> str:
    """Return the docstring of a policy, with the fields of its base classes added to its ``Attributes``."""
    head, title, rest = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    own, blank, further = rest.partition("\n\n")
    inherited = [
        lines
        for base in cls.__bases__
        if issubclass(base, ResourcePolicy)
        for name, lines in documented_fields(base.__doc__ or "").items()
        if not re.search(rf"^    {name}: ", own, re.MULTILINE)
    ]
    fields = "\n".join([*([own.rstrip()] if own else []), *inherited])
    before = head if title or not fields else f"{head}\n\n"
    return f"{before}Attributes:\n{fields}{blank}{further}" if fields else head


def documented_fields(doc: str) -> dict[str, str]:
    """Return the lines of each field in the section ``Attributes`` of a docstring, by the name of the field."""
    section = doc.partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.finditer(r"^    (\w+): .+(?:\n {8}.+)*", section, re.MULTILINE)
    return {each[1]: each[0] for each in found}


class ResourcePolicy(Value):
    """Decides which resources a trial gets. A policy is a frozen value without I/O, clock or state.

    The name of a subclass is its ``kind`` in policy files. If another class has that name, the ``class`` statement
    raises ``InvalidResourcesError``. A class may be redefined, for instance when a notebook cell runs again.
    """

    # A class from a user's script can only be sent to other processes after its schema is built.
    model_config = ConfigDict(defer_build=False)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls.__doc__ = _with_inherited_fields(cls)
        if "plan" in vars(cls) and not isabstract(cls):
            cls.plan = _checked(cls.plan)  # type: ignore[assignment, method-assign]
        other = _CLASSES.get(cls.__name__)
        if other is None or isabstract(other) or _is_defined_again(other, cls):
            _CLASSES[cls.__name__] = cls
        elif not isabstract(cls):
            raise InvalidResourcesError(
                f"{cls.__module__}.{cls.__qualname__} has the name of another policy, {other.__module__}."
                f"{other.__qualname__}: rename the class, because the name is the 'kind' in policy files"
            )

    @model_validator(mode="after")
    def _must_end(self) -> Self:
        _check_size(self)
        return self

    @property
    def inner_policies(self) -> tuple["ResourcePolicy", ...]:
        """The policies among its fields."""
        values = [getattr(self, name) for name in type(self).model_fields]
        parts = chain.from_iterable(value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(part for part in parts if isinstance(part, ResourcePolicy))

    @abstractmethod
    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. It is the same for the same capacity, in any order of the nodes.

        Raises:
            InfeasibleRequestError: Not even one trial fits. A policy raises no other error. If it returns anything but
                a plan, the caller gets an ``InvalidResourcesError``.
        """

    def copy(self, *, include: Any = None, exclude: Any = None, update: Any = None, deep: bool = False) -> Self:
        """Raise ``InvalidResourcesError``: Tune copies ``resources_per_trial``, which cannot be a policy."""
        raise InvalidResourcesError(
            f"{type(self).__name__} is a policy, and resources_per_trial takes amounts: use "
            "run(train_fn, policy), or tune.run(train_fn, scheduler=PolicyScheduler(policy)). To change a field of a "
            "policy, use model_copy(update={…})"
        )

    @property
    def choices(self) -> tuple["ResourcePolicy", ...]:
        """The alternatives that are tried in order: by default only this policy."""
        return (self,)

    def __or__(self, other: "ResourcePolicy") -> "ResourcePolicy":
        """Return the ``FirstFeasiblePolicy`` that falls back to ``other`` if this policy does not fit."""
        if not isinstance(other, ResourcePolicy):
            return NotImplemented
        # By name, because that class is a subclass of this one.
        return _CLASSES["FirstFeasiblePolicy"].from_dict({"policies": (self, other)})

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Build the policy from plain data, with or without its ``kind``.

        Raises:
            InvalidResourcesError: ``data`` is not a mapping, it has another ``kind``, or a field is wrong.
        """
        if not isinstance(data, dict) or "kind" not in data:
            return super().from_dict(data)
        policy = build_policy(data)
        if not isinstance(policy, cls):
            raise InvalidResourcesError(
                f"this is a {data['kind']}, not a {cls.__name__}: use build_policy or load_policy"
            )
        return policy

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Build the policy from the output of ``to_json``.

        Raises:
            InvalidResourcesError: ``text`` is not JSON, or not this policy.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            # The parser allows deeper nesting than policies do, and only its message mentions the limit.
            why = _TOO_DEEP if "recursion limit" in str(error) else f"this is not JSON: {error}"
            raise InvalidResourcesError(f"{cls.__name__}: {why}") from error
        return cls.from_dict(data)

    @model_serializer(mode="wrap")
    def _with_kind(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": type(self).__name__, **serialize(self)}


def _check_size(policy: object, deepest: int = _DEEPEST) -> None:
    """Check that a policy, or its plain data, is neither nested too deeply nor too large."""
    try:
        depth, number = _size(policy, {}, tuple(policies_by_kind()))
    except RecursionError:
        raise InvalidResourcesError(_TOO_DEEP) from None
    if depth > deepest:
        raise InvalidResourcesError(_TOO_DEEP)
    if number > _MOST_POLICIES:
        raise InvalidResourcesError(
            f"a policy may contain at most {_MOST_POLICIES} policies, got {number:,}: remove some of the choices"
        )


def _size(data: object, known: dict[int, tuple[int, int]], kinds: tuple[str, ...]) -> tuple[int, int]:
    """Return the depth and the number of nested policies. A policy that appears twice counts twice."""
    if id(data) in known:
        return known[id(data)]
    match data:
        case ResourcePolicy():
            own, inside = 1, data.inner_policies
        case dict():
            own, inside = int(data.get("kind") in kinds), tuple(data.values())
        case list() | tuple():
            own, inside = 0, tuple(data)
        case _:
            return 0, 0
    sizes = [_size(each, known, kinds) for each in inside]
    known[id(data)] = own + max((depth for depth, _ in sizes), default=0), own + sum(number for _, number in sizes)
    return known[id(data)]


def _policy(value: object) -> ResourcePolicy:
    if isinstance(value, ResourcePolicy):
        return value
    _check_size(value, _DEEPEST - 1)  # before building, because each level builds it again to explain an error
    return _build(value)


InnerPolicy = Annotated[SerializeAsAny[ResourcePolicy], BeforeValidator(_policy)]
"""A policy inside another policy: an object, or plain data with a ``kind``."""


class WorkersPolicy(ResourcePolicy):
    """A policy that decides which resources each worker of a trial gets.

    Attributes:
        memory: Host memory of each worker: bytes, or a text such as ``"4GiB"``; ``None``: none reserved.
        num_workers: Train workers in a trial; 0: the trial itself trains; ``(2, 8)``: 2 to 8, depending on the room.
    """

    memory: Memory | None = None
    num_workers: WorkerCount = 0

    def _with_rounded_memory(self, capacity: ClusterCapacity) -> ClusterCapacity:
        """Return the cluster with one shape for nodes that do not differ for the workers."""
        return with_rounded_memory(capacity, memory=self.memory, num_workers=self.num_workers)

    def _request(self, cpus: float, gpus: float = 0, custom: Mapping[str, float] | None = None) -> Request:
        """Return the request of a trial with these amounts, and the policy's memory, for each worker."""
        worker = Resources(cpus=cpus, gpus=gpus, memory_bytes=self.memory, custom=custom or {})
        return Request(worker=worker, num_workers=self.num_workers)


class WrappingPolicy(ResourcePolicy):
    """A policy around another policy.

    Each subclass has an ``__init__``, so that ``inner`` can be passed by position. Type checkers read its signature. It
    calls ``Value.__init__``, because for them ``super().__init__`` accepts only ``inner``.

    Attributes:
        inner: The policy that decides everything else.
    """

    inner: InnerPolicy

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """This policy around each choice of the inner policy."""
        choices = self.inner.choices
        if choices == (self.inner,):
            return (self,)
        return tuple(self.model_copy(update={"inner": choice}) for choice in choices)


def with_inner(policies: Iterable[ResourcePolicy]) -> Iterator[ResourcePolicy]:
    """Yield the policies and all policies inside them."""
    for policy in policies:
        yield policy
        yield from with_inner(policy.inner_policies)


def build_policy(data: object) -> ResourcePolicy:
    """Build a policy from plain data with a ``kind``.

    Raises:
        InvalidResourcesError: ``data`` is not a mapping, its ``kind`` is missing or unknown, or a field is wrong.
    """
    try:
        _check_size(data)
        return _build(data)
    except RecursionError as error:
        raise InvalidResourcesError(_TOO_DEEP) from error


def _build(data: object) -> ResourcePolicy:
    kinds = policies_by_kind()
    if not isinstance(data, dict):
        raise InvalidResourcesError(f"a policy must be a mapping with a 'kind', got {kind_of(data)}")
    fields = dict(data)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in kinds:
        what = "a policy needs a 'kind'" if kind is None else f"unknown kind {shorten(kind)}"
        raise InvalidResourcesError(f"{what}{suggest(str(kind or ''), kinds)} (known: {', '.join(sorted(kinds))})")
    policy: ResourcePolicy = kinds[kind].from_dict(fields)
    return policy


def policies_by_kind() -> dict[str, type[ResourcePolicy]]:
    """Return all imported classes of policies by ``kind``."""
    return {kind: cls for kind, cls in _CLASSES.items() if not isabstract(cls)}


def _checked(plan: Callable[[Any, ClusterCapacity], TrialPlan]) -> Callable[[Any, ClusterCapacity], TrialPlan]:
    """Return the ``plan`` method of a policy with a check that it returns a plan."""

    @functools.wraps(plan)
    def checked(self: ResourcePolicy, capacity: ClusterCapacity) -> TrialPlan:
        made = plan(self, capacity)
        if not isinstance(made, TrialPlan):
            raise InvalidResourcesError(
                f"{type(self).__name__}.plan must return a TrialPlan, got {shorten(made)}: return, for instance, the "
                "plan of another policy"
            )
        return made

    return checked


def _is_defined_again(earlier: type[Any], later: type[Any]) -> bool:
    """Return whether two classes have the same module and qualified name."""
    names = {earlier.__qualname__, later.__qualname__}
    # A class that cloudpickle rebuilds in another process has no qualified name.
    return earlier.__module__ == later.__module__ and (len(names) == 1 or later.__name__ in names)


def _no_devices(amounts: dict[str, float]) -> dict[str, float]:
    for name in amounts:
        if name in DEVICE_RESOURCES:
            raise InvalidResourcesError(
                f"custom resource {name!r} is a device, which Ray assigns individually: "
                f"use AcceleratorPolicy(resource={name!r})"
            )
        if name in ("cpu", "gpu"):
            raise InvalidResourcesError(f"custom resource {name!r} is Tune's name for {name.upper()}: use {name}s")
        if name.startswith(ACCELERATOR_TYPE_PREFIX):
            raise InvalidResourcesError(
                f"custom resource {name!r} is Ray's name of a device type: use accelerator_type"
            )
    return amounts


WantedCustom = Annotated[CustomAmounts, AfterValidator(_no_devices)]
"""Amounts of other Ray resources by name, without devices and resources with a field of their own."""
