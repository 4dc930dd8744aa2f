"""The one interface, and how a policy is written as plain data.

In YAML and JSON a policy is a mapping whose ``kind`` is the name of its class and whose other keys are the
fields. A user's own subclass of ``ResourcePolicy`` can be named the same way, once it is imported. Importing this
module imports the package's own policies first, so no later class can take one of their names.
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
from tune_policies.placement.packing import Request, as_told_apart
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import CustomAmounts, Memory, Resources, WorkerCount
from tune_policies.values.value import Value, kind_of, shorten, suggest

_DEEPEST: Final = 32
"""How deep policies may be nested: each level costs some ten nested calls, of which Python allows 1000."""

_MOST_POLICIES: Final = 256
"""How many policies may be in one: all of them may have to plan."""

_TOO_DEEP: Final = f"more than {_DEEPEST} policies are inside one another: leave some of them out"

_CLASSES: Final[dict[str, type["ResourcePolicy"]]] = {}
"""The classes of policies by name. They are registered one by one, because a refused class may still exist."""


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
    """Decides what a trial gets. A frozen value without I/O, clock or state.

    The name of a subclass is its ``kind`` in policy files. If another class has that name, the ``class`` statement
    raises ``InvalidResourcesError``. A class may be defined again, as when a notebook cell runs a second time.
    """

    # A class that a user defines in a script is sent to other processes, which is only possible with its schema.
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
                f"{other.__qualname__}, and the name is the 'kind' in policy files: rename the class"
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
        """Return the plan for ``capacity``: the same for the same capacity, in whatever order its nodes are.

        Raises:
            InfeasibleRequestError: Not even one trial fits. A policy raises nothing else. Where it returns something
                else than a plan, the caller gets an ``InvalidResourcesError``.
        """

    def copy(self, *, include: Any = None, exclude: Any = None, update: Any = None, deep: bool = False) -> Self:
        """Raise ``InvalidResourcesError``, because Tune copies its ``resources_per_trial``, which takes no policy."""
        raise InvalidResourcesError(
            f"{type(self).__name__} is a policy, and resources_per_trial takes amounts: use "
            "run(train_fn, policy), or tune.run(train_fn, scheduler=PolicyScheduler(policy)). To change a field of a "
            "policy, use model_copy(update={…})"
        )

    @property
    def choices(self) -> tuple["ResourcePolicy", ...]:
        """The policies among which this one takes the first that fits: itself, unless it is one of choices."""
        return (self,)

    def __or__(self, other: "ResourcePolicy") -> "ResourcePolicy":
        """Return the ``FirstFeasiblePolicy`` that takes ``other`` if this policy does not fit."""
        if not isinstance(other, ResourcePolicy):
            return NotImplemented
        # By name, because that class derives from this one. No other class can have the name.
        return _CLASSES["FirstFeasiblePolicy"].from_dict({"policies": (self, other)})

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Build the policy from plain data, with or without its ``kind``.

        Raises:
            InvalidResourcesError: ``data`` is not a mapping, of another kind, or a field of it is wrong.
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
        """Build the policy from what ``to_json`` wrote.

        Raises:
            InvalidResourcesError: ``text`` is not JSON, or not this policy.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            # The parser allows more levels than policies may have, and says so in its message alone.
            why = _TOO_DEEP if "recursion limit" in str(error) else f"this is not JSON: {error}"
            raise InvalidResourcesError(f"{cls.__name__}: {why}") from error
        return cls.from_dict(data)

    @model_serializer(mode="wrap")
    def _with_kind(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": type(self).__name__, **serialize(self)}


def _check_size(policy: object, deepest: int = _DEEPEST) -> None:
    """Check that a policy, or the plain data of one, is neither too deep nor too large."""
    try:
        depth, number = _size(policy, {}, tuple(policies_by_kind()))
    except RecursionError:
        raise InvalidResourcesError(_TOO_DEEP) from None
    if depth > deepest:
        raise InvalidResourcesError(_TOO_DEEP)
    if number > _MOST_POLICIES:
        raise InvalidResourcesError(
            f"{number:,} policies are in one, and at most {_MOST_POLICIES} may be: leave some of the choices out"
        )


def _size(data: object, known: dict[int, tuple[int, int]], kinds: tuple[str, ...]) -> tuple[int, int]:
    """Return how deep policies are nested, and how many there are; one that is inside twice counts twice."""
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
    _check_size(value, _DEEPEST - 1)  # before it is built, because each level builds it again to explain an error
    return _build(value)


InnerPolicy = Annotated[SerializeAsAny[ResourcePolicy], BeforeValidator(_policy)]
"""A policy inside another: an object, or plain data with a ``kind``."""


class WorkersPolicy(ResourcePolicy):
    """A policy that decides what each worker of a trial gets.

    Attributes:
        memory: Host memory of each worker: bytes, or a text such as ``"4GiB"``; ``None``: none reserved.
        num_workers: Train workers in a trial; 0: the trial itself trains; ``(2, 8)``: from 2 to 8, as there is room.
    """

    memory: Memory | None = None
    num_workers: WorkerCount = 0

    def _as_told_apart(self, capacity: ClusterCapacity) -> ClusterCapacity:
        """Return the cluster with one shape for nodes that are equal to the workers."""
        return as_told_apart(capacity, memory=self.memory, num_workers=self.num_workers)

    def _request(self, cpus: float, gpus: float = 0, custom: Mapping[str, float] | None = None) -> Request:
        """Return the request of a trial whose workers each get these amounts and the memory."""
        worker = Resources(cpus=cpus, gpus=gpus, memory_bytes=self.memory, custom=custom or {})
        return Request(worker=worker, num_workers=self.num_workers)


class WrappingPolicy(ResourcePolicy):
    """A policy around another.

    Each subclass has an ``__init__`` so that ``inner`` can be passed by position. It calls ``Value.__init__``, because
    for type checkers ``super().__init__`` takes ``inner`` alone.

    Attributes:
        inner: The policy that decides everything else.
    """

    inner: InnerPolicy

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """The same around each of the inner policy's choices."""
        choices = self.inner.choices
        if choices == (self.inner,):
            return (self,)
        return tuple(self.model_copy(update={"inner": choice}) for choice in choices)


def with_inner(policies: Iterable[ResourcePolicy]) -> Iterator[ResourcePolicy]:
    """Yield policies and all the policies inside them."""
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
    """Return every class of policy that is imported, by its ``kind``."""
    return {kind: cls for kind, cls in _CLASSES.items() if not isabstract(cls)}


def _checked(plan: Callable[[Any, ClusterCapacity], TrialPlan]) -> Callable[[Any, ClusterCapacity], TrialPlan]:
    """Return the ``plan`` method of a policy with a check that it returns a plan."""

    @functools.wraps(plan)
    def checked(self: ResourcePolicy, capacity: ClusterCapacity) -> TrialPlan:
        made = plan(self, capacity)
        if not isinstance(made, TrialPlan):
            raise InvalidResourcesError(
                f"{type(self).__name__}.plan must return a TrialPlan, got {shorten(made)}: return the plan of another "
                "policy, perhaps changed"
            )
        return made

    return checked


def _is_defined_again(earlier: type[Any], later: type[Any]) -> bool:
    """Return whether two classes have the same module and qualified name."""
    names = {earlier.__qualname__, later.__qualname__}
    # A class that cloudpickle has rebuilt in another process has its bare name only.
    return earlier.__module__ == later.__module__ and (len(names) == 1 or later.__name__ in names)


def _no_devices(amounts: dict[str, float]) -> dict[str, float]:
    for name in amounts:
        if name in DEVICE_RESOURCES:
            raise InvalidResourcesError(
                f"custom resource {name!r} is a device, which Ray hands out one by one: "
                f"take AcceleratorPolicy(resource={name!r})"
            )
        if name in ("cpu", "gpu"):
            raise InvalidResourcesError(f"custom resource {name!r} is Tune's name for {name.upper()}: use {name}s")
        if name.startswith(ACCELERATOR_TYPE_PREFIX):
            raise InvalidResourcesError(
                f"custom resource {name!r} is how Ray names a device type: use accelerator_type"
            )
    return amounts


WantedCustom = Annotated[CustomAmounts, AfterValidator(_no_devices)]
"""Amounts of other Ray resources by name, without devices and resources that have a field of their own."""
