"""The base classes of all policies, and the conversion of policies to and from plain data.

In YAML and JSON, a policy is a mapping. Its ``kind`` is the name of its class, and the other keys are its fields. A
user's subclass of ``ResourcePolicy`` can be used as a ``kind`` once its module is imported.
"""

import functools
import inspect
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
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
from tune_policies.placement.count_trials import with_rounded_memory
from tune_policies.placement.request import Request
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy_kinds import (
    hint_to_owners,
    instead_of_class,
    policies_by_kind,
    policy_of_kind,
    register,
)
from tune_policies.values.as_code import as_code, readable_signature, written_fields
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import CustomAmounts, Memory, Resources, WorkerCount
from tune_policies.values.value import Value
from tune_policies.values.wording import kind_of, shorten, with_article

_DEEPEST: Final = 32
"""The maximum nesting depth of policies. Each level needs about ten nested calls, and Python allows 1000."""

_MOST_POLICIES: Final = 256
"""The maximum number of policies in one policy. Each of these may compute a plan, so the limit bounds the run time."""

_TOO_DEEP: Final = f"policies are nested more than {_DEEPEST} levels deep. Reduce the nesting"

_NO_CAPACITY: Final[Any] = object()
"""The default of ``plan``'s argument, so that a call without a capacity gets an error with the call to write."""


def documented_fields(doc: str) -> dict[str, str]:
    """Return the lines that describe each field in the ``Attributes`` section of a docstring, by field name."""
    section = doc.partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.finditer(r"^    (\w+): .+(?:\n {8}.+)*", section, re.MULTILINE)
    return {lines[1]: lines[0] for lines in found}


OPTIONS_OF_RUNS: Final = frozenset(
    {"isolation", "on_unenforced_limit", "may_move", "falls_back", "replan_interval_s", "wait_for_nodes_s"}
)
"""The options of ``PolicyScheduler``, which policies do not have."""

_ARGUMENTS_OF_TUNE: Final = frozenset({"config", "metric", "mode", "num_samples", "scheduler", "search_alg"})
"""Arguments of ``tune.run`` that users may pass to a policy by mistake."""


class ResourcePolicy(Value):
    """Decides which resources each trial reserves. A policy is immutable and does no I/O.

    The name of a subclass is its ``kind`` in policy files. If another policy class has the same name, the ``class``
    statement raises ``InvalidResourcesError``. A class may be redefined, for instance when a notebook cell runs again.
    """

    # A class of a user's script can be pickled for other processes only after its schema is built. Defaults are
    # validated, so that the default 1 and the argument 1.0 are the same float, and have the same JSON.
    model_config = ConfigDict(defer_build=False, validate_default=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Complete a policy class: its signature for ``help``, the checks of ``plan``, and its ``kind``.

        The class statement does this, because users write a policy as a class with one method, ``plan``, and without a
        call or a decorator of this package. The checks take 0.006 µs of a call, and a plan of ``CpuPolicy`` for one
        node takes 38 µs (Python 3.11, one core of an Intel Xeon).
        """
        super().__pydantic_init_subclass__(**kwargs)
        cls.__signature__ = readable_signature(cls)
        if "plan" in vars(cls) and "plan" not in cls.__abstractmethods__:
            cls.plan = _checked(cls.plan)  # type: ignore[assignment, method-assign]
        register(cls)

    @classmethod
    def _hint_for(cls, field: str, value: object) -> str:
        if field in OPTIONS_OF_RUNS | _ARGUMENTS_OF_TUNE:
            shown = f'"{value}"' if isinstance(value, str) else shorten(value)
            return f". It is an option of a run: run(train_fn, policy, {field}={shown})"
        return hint_to_owners(field)

    @model_validator(mode="after")
    def _must_end(self) -> Self:
        _check_size(self)
        return self

    @property
    def inner_policies(self) -> tuple["ResourcePolicy", ...]:
        """The policies in the fields of this policy."""
        values = [getattr(self, name) for name in type(self).model_fields]
        parts = chain.from_iterable(map(_parts, values))
        return tuple(part for part in parts if isinstance(part, ResourcePolicy))

    @property
    def depends_on_config(self) -> bool:
        """Whether trials with different configs may get different resources. See ``TrialPlan.by_config``."""
        return any(policy.depends_on_config for policy in self.inner_policies)

    @property
    def requests_gpus(self) -> bool:
        """Whether this policy, or a policy inside it, requests GPUs."""
        return any(policy.requests_gpus for policy in self.inner_policies)

    @abstractmethod
    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``.

        An implementation must return equal plans for equal capacities, regardless of the order of the nodes, and must
        raise no error other than ``InfeasibleRequestError``.

        Raises:
            InfeasibleRequestError: Not even one trial fits.
            InvalidResourcesError: The implementation returned something other than a ``TrialPlan``.
        """

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed. Raise ``InvalidResourcesError`` if a new value is invalid."""
        copied = super().model_copy(deep=deep)
        if update:
            Value.__init__(copied, **{**copied.__dict__, **update})
        return copied

    def copy(self, *, include: Any = None, exclude: Any = None, update: Any = None, deep: bool = False) -> Self:
        """Raise ``InvalidResourcesError``. Tune calls this method if a policy is passed as ``resources_per_trial``."""
        raise InvalidResourcesError(
            f"resources_per_trial must contain amounts, but {type(self).__name__} is a policy. Use run(train_fn, "
            "policy), or tune.run(train_fn, scheduler=PolicyScheduler(policy)). To change a field of a policy, use "
            "model_copy(update={…})"
        )

    @property
    def choices(self) -> tuple["ResourcePolicy", ...]:
        """The alternatives to try in order. By default, this policy is the only alternative."""
        return (self,)

    def __repr__(self) -> str:
        """Return the call that creates the policy, as users write it."""
        fields = {name: as_code(value) for name, value in written_fields(self).items()}
        parameters = inspect.signature(type(self)).parameters.values()
        arguments: list[str] = []
        if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
            del fields["policies"]
            arguments += map(repr, self.inner_policies)
        for parameter in parameters:
            is_by_position = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            if is_by_position and parameter.default is parameter.empty:
                arguments.append(fields.pop(parameter.name))
        arguments += [f"{name}={text}" for name, text in fields.items()]
        return f"{type(self).__name__}({', '.join(arguments)})"

    def __bool__(self) -> bool:
        """Raise an ``InvalidResourcesError``, because ``a or b`` would always be ``a``."""
        raise InvalidResourcesError(
            "a policy has no truth value. To fall back from one policy to another, write GpuPolicy() | CpuPolicy(), "
            "with | instead of or. To test whether a variable contains a policy, write 'policy is not None'. Instead "
            "of resources_per_trial=policy, use run(train_fn, policy), or tune.run(train_fn, "
            "scheduler=PolicyScheduler(policy))"
        )

    def __dir__(self) -> Iterable[str]:
        """Return the fields, the methods of policies and the special methods, without the names of pydantic."""
        inherited = set(dir(BaseModel)) - {"model_copy"}
        names = (name for name in super().__dir__() if name not in inherited or name.startswith("__"))
        return [name for name in names if name.startswith("__") or not name.startswith(("_", "model_post"))]

    def __or__(self, other: "ResourcePolicy") -> "ResourcePolicy":
        """Return a ``FirstFeasiblePolicy`` that falls back to ``other`` if no trial fits with this policy."""
        hint = instead_of_class(other)
        if hint:
            raise InvalidResourcesError(f"both sides of | must be policies, got {other!r}{hint}")
        if not isinstance(other, ResourcePolicy):
            return NotImplemented
        # The class is looked up by name, because its module imports this module.
        either: ResourcePolicy = policies_by_kind()["FirstFeasiblePolicy"].from_dict({"policies": (self, other)})
        return either

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Build the policy from plain data, with or without its ``kind``.

        Raises:
            InvalidResourcesError: ``data`` is not a mapping, has another ``kind``, or contains an invalid field.
        """
        names_no_kind = not isinstance(data, dict) or "kind" not in data
        if names_no_kind and not inspect.isabstract(cls):
            return super().from_dict(data)
        policy = build_policy(data)
        if not isinstance(policy, cls):
            kind = type(policy).__name__
            raise InvalidResourcesError(
                f"the data describes {with_article(kind)}, not {with_article(cls.__name__)}. "
                "Use ResourcePolicy.from_dict(data)"
            )
        return policy

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Build the policy from the output of ``to_json``.

        Raises:
            InvalidResourcesError: ``text`` is not JSON, or does not describe a policy of this class.
        """
        if not isinstance(text, str | bytes):
            raise InvalidResourcesError(
                f"{cls.__name__}.from_json requires text, got {kind_of(text)}. For a mapping, use from_dict"
            )
        try:
            data = parse_json(text)
        except ValueError as error:
            # Only the parser's message distinguishes data that is nested too deeply from invalid JSON.
            why = _TOO_DEEP if "recursion limit" in str(error) else f"the text is not JSON: {error}"
            raise InvalidResourcesError(f"{cls.__name__}: {why}") from error
        return cls.from_dict(data)

    def to_yaml(self, *, one_line: bool = False) -> str:
        """Return the content of a policy file, with the fields that differ from their defaults.

        Raises:
            InvalidResourcesError: A field is a function.
        """
        import yaml  # trials import this module, and need no files

        from tune_policies.files.yaml_texts import TextDumper

        data = _plain(self)
        if one_line:
            text: str = yaml.dump(data, Dumper=TextDumper, sort_keys=False, default_flow_style=True, width=math.inf)
            return text.rstrip()
        lines: str = yaml.dump(data, Dumper=TextDumper, sort_keys=False, allow_unicode=True)
        return lines

    @model_serializer(mode="wrap")
    def _with_kind(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": type(self).__name__, **serialize(self)}


def check_policy_object(policy: object) -> None:
    """Raise ``InvalidResourcesError`` if an argument ``policy`` is another object, such as a class or a file name."""
    if not isinstance(policy, ResourcePolicy):
        raise InvalidResourcesError(
            f"policy must be a policy, such as AutoPolicy(), got {shorten(policy)}{instead_of_class(policy)}"
        )


def passed_policies(
    cls: type[ResourcePolicy], by_position: Sequence[object], by_name: Sequence[ResourcePolicy] | None
) -> Sequence[object]:
    """Return the policies that a call passes either by position or as ``policies=``.

    Raises:
        InvalidResourcesError: The call passes both, or a list by position, or ``policies=`` is not a list.
    """
    if by_position and by_name is not None:
        raise InvalidResourcesError("pass the policies either as positional arguments or as policies=(…), not both")
    if len(by_position) == 1 and isinstance(by_position[0], list | tuple):
        listed = by_position[0]
        if not all(isinstance(policy, ResourcePolicy) for policy in listed):
            return listed  # the errors about its entries say more
        instead = ", ".join(map(repr, listed))
        raise InvalidResourcesError(f"{cls.__name__} accepts policies, not a list. Write {cls.__name__}({instead})")
    if by_name is None:
        return by_position
    if isinstance(by_name, ResourcePolicy | Mapping | str):  # pydantic would take the fields of a policy as entries
        raise InvalidResourcesError(f"policies must be a list of policies, got {shorten(by_name)}")
    return by_name


def _plain(value: object) -> object:
    """Return a value as plain data, without the fields that have their defaults."""
    if isinstance(value, ResourcePolicy):
        fields = {name: _plain(field) for name, field in written_fields(value).items()}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Value):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if callable(value):
        raise InvalidResourcesError(
            f"{shorten(value)} is a function, which a policy file cannot contain. Use the name of a value in the config"
        )
    return value


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, tuple):
        return value
    return (value,)


def _check_size(policy: object, deepest: int = _DEEPEST) -> None:
    """Raise ``InvalidResourcesError`` if a policy or its plain data contains too many or too deeply nested policies."""
    try:
        depth, number = _size(policy, {})
    except RecursionError:
        raise InvalidResourcesError(_TOO_DEEP) from None
    if depth > deepest:
        raise InvalidResourcesError(_TOO_DEEP)
    if number > _MOST_POLICIES:
        raise InvalidResourcesError(
            f"a policy may contain at most {_MOST_POLICIES} policies, got {number:,}. Remove some of them"
        )


def _size(data: object, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Return the nesting depth and the number of policies in ``data``. A policy that appears twice counts twice."""
    # With YAML aliases, a few lines can contain the same data billions of times, so each object is measured once.
    if id(data) in known:
        return known[id(data)]
    match data:
        case ResourcePolicy():
            own, inside = 1, data.inner_policies
        case dict():
            kind = data.get("kind")  # a list or a mapping in an invalid file
            own, inside = int(isinstance(kind, str) and kind in policies_by_kind()), tuple(data.values())
        case list() | tuple():
            own, inside = 0, tuple(data)
        case _:
            return 0, 0
    sizes = [_size(part, known) for part in inside]
    depth = own + max((depth for depth, _ in sizes), default=0)
    known[id(data)] = depth, own + sum(number for _, number in sizes)
    return known[id(data)]


def _policy(value: object) -> ResourcePolicy:
    if isinstance(value, ResourcePolicy):
        return value
    _check_size(value, _DEEPEST - 1)  # check first, because each level builds its data again to explain an error
    policy: ResourcePolicy = policy_of_kind(value)
    return policy


InnerPolicy = Annotated[SerializeAsAny[ResourcePolicy], BeforeValidator(_policy)]
"""A policy inside another policy: a policy object, or plain data with a ``kind``."""


class WorkersPolicy(ResourcePolicy):
    """A policy that decides which resources each worker of a trial reserves.

    Attributes:
        memory: The host memory that each worker reserves: bytes, or a string such as ``"4GiB"``. If ``None``, workers
            reserve no host memory.
        num_workers: The number of Train workers in a trial, or 0 if the trial itself trains. With ``(2, 8)``, a trial
            has 2 to 8 workers, depending on the free resources.
    """

    memory: Memory | None = None
    num_workers: WorkerCount = 0

    def _with_rounded_memory(self, capacity: ClusterCapacity) -> ClusterCapacity:
        """Round the host memory, so that nodes with room for the same number of workers have the same shape."""
        return with_rounded_memory(capacity, memory=self.memory, num_workers=self.num_workers)

    def _request(self, cpus: float, gpus: float = 0, custom: Mapping[str, float] | None = None) -> Request:
        """Return the request of a trial whose workers each need these amounts and the policy's host memory."""
        worker = Resources(cpus=cpus, gpus=gpus, memory_bytes=self.memory, custom=custom or {})
        return Request(worker=worker, num_workers=self.num_workers)


class WrappingPolicy(ResourcePolicy):
    """A policy that wraps another policy.

    Each subclass defines an ``__init__``, so that type checkers accept ``inner`` as a positional argument. The method
    calls ``Value.__init__``, because type checkers would accept only ``inner`` in a call of ``super().__init__``.

    Attributes:
        inner: The wrapped policy.
    """

    inner: InnerPolicy

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """One copy of this policy for each choice of the inner policy."""
        choices = self.inner.choices
        if choices == (self.inner,):
            return (self,)
        return tuple(self.model_copy(update={"inner": choice}) for choice in choices)


def with_inner(policies: Iterable[ResourcePolicy]) -> Iterator[ResourcePolicy]:
    """Yield the policies and all policies nested in them."""
    for policy in policies:
        yield policy
        yield from with_inner(policy.inner_policies)


def decides_by_config(policy: ResourcePolicy) -> bool:
    """Return whether this policy itself, and not a policy inside it, chooses resources by the config of a trial."""
    return policy.depends_on_config and not any(inner.depends_on_config for inner in policy.inner_policies)


def build_policy(data: object) -> ResourcePolicy:
    """Build a policy from plain data with a ``kind``.

    Raises:
        InvalidResourcesError: ``data`` is not a mapping, its ``kind`` is missing or unknown, or a field is invalid.
    """
    try:
        _check_size(data)
        policy: ResourcePolicy = policy_of_kind(data)
    except RecursionError as error:
        raise InvalidResourcesError(_TOO_DEEP) from error
    return policy


def _checked(plan: Callable[[Any, ClusterCapacity], TrialPlan]) -> Callable[[Any, ClusterCapacity], TrialPlan]:
    """Return a ``plan`` method that also checks its argument and that its result is a ``TrialPlan``."""

    @functools.wraps(plan)
    def checked(self: ResourcePolicy, capacity: ClusterCapacity = _NO_CAPACITY) -> TrialPlan:
        if not isinstance(self, ResourcePolicy):
            name = plan.__qualname__.split(".")[-2]
            raise InvalidResourcesError(f"plan requires a policy object. Write {name}(…).plan(capacity)")
        if not isinstance(capacity, ClusterCapacity):
            raise InvalidResourcesError(_why_no_capacity(self, capacity))
        made = plan(self, capacity)
        if not isinstance(made, TrialPlan):
            raise InvalidResourcesError(
                f"{type(self).__name__}.plan must return a TrialPlan, got {shorten(made)}. For instance, return the "
                "plan of another policy"
            )
        return made

    return checked


def _why_no_capacity(policy: ResourcePolicy, given: object) -> str:
    """Return a message with the call of ``plan`` that the caller probably meant."""
    if given is _NO_CAPACITY:
        return f"plan requires the capacity of a cluster. Write plan_on_cluster({policy!r}) for the running cluster"
    amounts = dict(given) if isinstance(given, Mapping) else {}
    match given:
        case Resources():
            meant = repr(given)
        case bool():
            meant = "Resources(cpus=8)"
        case int() | float():
            meant = f"Resources(cpus={given})"
        case _:
            shown = [f"{name.lower()}s={amounts[name]!r}" for name in ("CPU", "GPU") if name in amounts]
            meant = f"Resources({', '.join(shown) or 'cpus=8'})"
    return (
        f"plan requires a ClusterCapacity, got {shorten(given)}. Write {policy!r}.plan(ClusterCapacity.of({meant})) "
        f"for one node, or plan_on_cluster({policy!r}) for the running cluster"
    )


def _no_devices(amounts: dict[str, float]) -> dict[str, float]:
    for name in amounts:
        if name in DEVICE_RESOURCES:
            raise InvalidResourcesError(
                f"custom resource {name!r} is not valid, because Ray assigns devices individually. Use "
                f"AcceleratorPolicy(resource={name!r})"
            )
        if name in ("cpu", "gpu"):
            raise InvalidResourcesError(f"custom resource {name!r} is Tune's name for {name.upper()}. Use {name}s")
        if name.startswith(ACCELERATOR_TYPE_PREFIX):
            raise InvalidResourcesError(
                f"custom resource {name!r} is Ray's name of a device type. Use accelerator_type"
            )
    return amounts


WantedCustom = Annotated[CustomAmounts, AfterValidator(_no_devices)]
"""Amounts of custom Ray resources by name. Devices, and resources with their own field, are rejected."""
