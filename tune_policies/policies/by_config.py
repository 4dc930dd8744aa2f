"""A policy with a policy for each value in the config, for instance for each algorithm."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Annotated, Any, NamedTuple, Self, TypeVar

from pydantic import BeforeValidator, model_validator

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.layout import with_places
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.plan_notes import about_the_nodes
from tune_policies.plan.slots_by_config import (
    ConfigKey,
    SlotsByValue,
    describe_key,
    share_unequally,
    total_resources,
    value_name,
)
from tune_policies.plan.trial_plan import NodeNote, TrialPlan
from tune_policies.policies.benchmarked import check_same_for_all
from tune_policies.policies.policy import InnerPolicy, ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import amount_of
from tune_policies.values.value import Value
from tune_policies.values.wording import kind_of, shorten, shorten_names

_Item = TypeVar("_Item")


def _by_name(value: object) -> dict[str, Any]:
    """Return the policies keyed by the names of the values, or raise an ``InvalidResourcesError``."""
    if not isinstance(value, Mapping) or not value:
        got = "an empty mapping" if isinstance(value, Mapping) else kind_of(value)
        raise InvalidResourcesError(
            f"policies must map at least one value in the config to a policy, such as {{'SAC': GpuPolicy()}}, got {got}"
        )
    named: dict[str, Any] = {}
    for key, policy in value.items():
        name = value_name(key)
        if name is None:
            raise InvalidResourcesError(
                f"policies: {shorten(key)} is not a single value. Use a function as the key, which returns a string or "
                "a number for each config"
            )
        if name in named:
            raise InvalidResourcesError(
                f"policies: two values have the name {name!r}. Numbers and strings with the same text need the same "
                "policy, because keys in a file are strings"
            )
        named[name] = policy
    return dict(sorted(named.items()))  # equal policies have equal plans and the same JSON


class ByConfigPolicy(ResourcePolicy):
    """Chooses the policy of each trial by its config, for instance by its algorithm.

    ``ByConfigPolicy("algo", {"SAC": GpuPolicy(), "PPO": GpuPolicy(gpus=0.25)}, default=CpuPolicy())`` reserves a GPU
    for trials with ``{"algo": "SAC"}``, a quarter of a GPU for trials with ``{"algo": "PPO"}``, and a CPU for all other
    trials. ``ByConfigPolicy(lambda config: config["width"] > 512, {True: GpuPolicy(), False: CpuPolicy()})`` chooses
    by the result of a function.

    Trials of all policies run side by side if the cluster has room for them. Trials with different fractions of a GPU
    run one after the other, because Ray schedules only equal fractions safely. Each policy must be feasible alone.

    Attributes:
        key: The name of the value in the config, such as ``"algo"``, or ``"model/width"`` in a nested mapping. In
            Python, it can also be a function that takes the config and returns a value. Such a policy cannot be saved
            in a file, but Tune can pickle it, even if the function is a lambda.
        policies: The policy for each value: a string, a number, ``True``, ``False``, ``None``, or a class. In a file,
            the keys are the texts of the values, such as ``"16"`` and ``"true"``. No policy may choose by the config
            itself, and none may be a ``MixedPolicy`` or an ``AutoscalingPolicy``.
        default: The policy for other values and for configs without the value. If ``None``, such a trial fails, and the
            other trials continue.

    Raises:
        InvalidResourcesError: A field is invalid, or ``policies`` is empty.
    """

    key: ConfigKey
    policies: Annotated[dict[str, InnerPolicy], BeforeValidator(_by_name)]
    default: InnerPolicy | None = None

    def __init__(
        self, key: ConfigKey, policies: Mapping[Any, ResourcePolicy], default: ResourcePolicy | None = None
    ) -> None:
        Value.__init__(self, key=key, policies=policies, default=default)

    @model_validator(mode="after")
    def _must_be_the_only_choice_by_config(self) -> Self:
        check_same_for_all(self.inner_policies, "policies and default", type(self).__name__)
        return self

    @property
    def depends_on_config(self) -> bool:
        """Always true."""
        return True

    @property
    def distinct_policies(self) -> tuple[ResourcePolicy, ...]:
        """The policies of the values and the default policy, without duplicates."""
        return tuple(_distinct(self.inner_policies))

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        kinds = list(self._kinds())
        plans = [self._plan_of(kind, capacity) for kind in kinds]
        chosen = [plan.common_slot for plan in plans]
        if len(kinds) > 1:
            # Additional workers of one trial could use the resources of a trial with another slot.
            chosen = [slot.of_fixed_size() for slot in chosen]
        slots = _distinct(chosen)
        at = [slots.index(slot) for slot in chosen]
        slot_of = {name: at[i] for i, kind in enumerate(kinds) for name in kind.names}
        default = next((at[i] for i, kind in enumerate(kinds) if kind.is_default), None)
        by_config = SlotsByValue(
            slots=tuple(slots), key=self.key, slot_of=slot_of, default=default, total=total_resources(capacity)
        )
        # The fewer trials fit in a slot type, the more one of them requests.
        largest = min(slots, key=_most_demanding_first)
        # Only an AutoscalingPolicy adds nodes, so the slots are placed on the alive nodes.
        alive = capacity.model_copy(update={"node_types": ()})
        beside = with_places(sorted(slots, key=_devices_and_many_first), alive)
        reasons = [f"{self._trials_of(kind)} get {slot}" for kind, slot in zip(kinds, chosen, strict=True)]
        reasons += _about_fractions(slots)
        for kind, plan in zip(kinds, plans, strict=True):
            own = (reason for reason in plan.reasons if not isinstance(reason, NodeNote))
            reasons += (f"for {kind.values}: {reason}" for reason in own)
        most = max(plans, key=lambda plan: plan.max_concurrent_trials)
        # If trials of different kinds only fit one after the other, the plan contains the most demanding slot.
        has_several = len(beside) > 1
        common = largest if has_several else None
        return TrialPlan(
            slots=beside if has_several else (largest,),
            common=common,
            limited_by=most.limited_by,
            reasons=(*reasons, *about_the_nodes(capacity)),
            by_config=by_config,
            fewer_than_fit=any(plan.fewer_than_fit for plan in plans),
        )

    def _kinds(self) -> Iterator["_Kind"]:
        """Yield the distinct policies, each with the names of its values."""
        for policy in self.distinct_policies:
            names = tuple(name for name, other in self.policies.items() if other == policy)
            yield _Kind(policy, names, is_default=self.default == policy)

    def _plan_of(self, kind: "_Kind", capacity: ClusterCapacity) -> TrialPlan:
        try:
            return kind.policy.plan(capacity)
        except InfeasibleRequestError as error:
            raise error.with_texts(asked=f"{error.asked} for {kind.values}") from error

    def _trials_of(self, kind: "_Kind") -> str:
        """Return which trials use a policy, as text."""
        parts = []
        if kind.names and isinstance(self.key, str):
            parts.append(f"trials with {self.key} {kind.values}")
        elif kind.names:
            parts.append(f"trials for which {describe_key(self.key)} returns {kind.values}")
        if kind.is_default:
            parts.append("all other trials")
        return " and ".join(parts)


class _Kind(NamedTuple):
    """A policy and its trials.

    Attributes:
        policy: The policy.
        names: The names of the values with this policy.
        is_default: Whether the policy also applies to other values.
    """

    policy: ResourcePolicy
    names: tuple[str, ...]
    is_default: bool

    @property
    def values(self) -> str:
        """The names of the values as text."""
        return shorten_names([repr(name) for name in self.names]) or "other values"


def _distinct(items: Iterable[_Item]) -> list[_Item]:
    """Return the items without duplicates, in the same order. The items need not be hashable."""
    found: list[_Item] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def _devices_and_many_first(slot: TrialSlot) -> tuple[object, ...]:
    return not slot.has_device, -slot.max_concurrent_trials, str(slot)


def _most_demanding_first(slot: TrialSlot) -> tuple[object, ...]:
    return not slot.has_device, slot.max_concurrent_trials, str(slot)


def _about_fractions(slots: list[TrialSlot]) -> Iterator[str]:
    """Yield a sentence for each pair of slots whose trials do not run at the same time."""
    for one, other in combinations(slots, 2):
        if share_unequally(one, other):
            yield (
                f"trials with {_fraction_of(one)} and trials with {_fraction_of(other)} do not run at the same time, "
                "because with unequal fractions a trial can stay pending indefinitely; request the same fraction, or "
                "restrict each policy to its own nodes"
            )


def _fraction_of(slot: TrialSlot) -> str:
    if slot.worker.gpus:
        return amount_of(slot.worker.gpus, "GPU")
    return str(slot.worker)
