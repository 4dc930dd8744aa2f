"""Which worker groups the trials of a policy need, as few and as cheap as hold them."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tune_policies.kuberay.nodes.catalog import NodeType
from tune_policies.kuberay.nodes.cluster_spec import ClusterSpec, WorkerGroup
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Count, PositiveCount, Resources
from tune_policies.values.sanitize import one_line
from tune_policies.values.value import Value, counted, shorten

_CLUSTER_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")


def _name(name: str) -> str:
    if not _CLUSTER_NAME.fullmatch(name):
        raise InvalidResourcesError(
            # KubeRay puts the names of its pods and services together from it.
            f"name {shorten(name)} must have small letters, digits and '-', a letter first, and at most 53 of them"
        )
    return name


class PlannedGroup(Value):
    """Workers of one node type.

    Attributes:
        node_type: Of which.
        min_nodes: So many are always there.
        max_nodes: So many may be there.
        start_nodes: So many are there at first.
        num_hosts: Nodes that come and go together.
        trials_at_once: How many trials all of its nodes hold.
    """

    node_type: NodeType
    min_nodes: Count = 0
    max_nodes: PositiveCount
    start_nodes: Count = 0
    num_hosts: PositiveCount = 1
    trials_at_once: Count = 0

    def __str__(self) -> str:
        has, kind = self.node_type.resources, self.node_type.accelerator_type
        nodes = f"{self.node_type.name}: {self.min_nodes} to {counted(self.max_nodes, 'node')}"
        slices = "" if self.num_hosts == 1 else f" in slices of {self.num_hosts}"
        return f"{nodes}{slices} with {has}{f' ({kind})' if kind else ''}, for {counted(self.trials_at_once, 'trial')}"

    @property
    def spec(self) -> WorkerGroup:
        """The group as a file of it is to be read again."""
        return WorkerGroup(
            name=self.node_type.name,
            resources=self.node_type.resources,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            start_nodes=self.start_nodes,
            num_hosts=self.num_hosts,
            accelerator_type=self.node_type.accelerator_type,
            labels=self.node_type.ray_labels,
            gpu_parts=self.node_type.gpu_parts,
            topology=self.node_type.topology,
            price_per_hour=self.node_type.price_per_hour,
        )


class ClusterPlan(Value):
    """What cluster a policy's trials need.

    Attributes:
        name: Of the cluster: a DNS label of at most 53 characters.
        head: The head node.
        groups: One for each kind of slot at the least.
        trials: The plan of the trials on it.
        num_trials: How many trials are to run.
        idle_timeout_s: After so many seconds without work a node goes.
        price_per_hour: Of all nodes at their most, with the head where its price is told; ``None``: that of some worker
            is not known.
        hours: How long all the trials take, by what benchmarks measured; ``None``: not known.
        currency: Of the price.
        reasons: How it came about, a sentence each.
    """

    name: Annotated[str, AfterValidator(_name)]
    head: NodeType
    groups: tuple[PlannedGroup, ...] = Field(min_length=1)
    trials: TrialPlan
    num_trials: PositiveCount
    idle_timeout_s: Annotated[int, Field(ge=0)] = 60
    price_per_hour: float | None = None
    hours: float | None = None
    currency: str = "USD"
    reasons: tuple[str, ...] = ()

    @property
    def spec(self) -> ClusterSpec:
        """The cluster as a file of it is to be read again. Its head has host memory, for Train drivers, and no CPU."""
        return ClusterSpec(
            name=self.name,
            head=Resources(memory_bytes=self.head.memory_bytes),
            groups=tuple(group.spec for group in self.groups),
            idle_timeout_s=self.idle_timeout_s,
        )

    @property
    def price(self) -> float | None:
        """What all the trials cost together, if every node stays until the last of them ends; ``None``: not known."""
        return None if self.price_per_hour is None or self.hours is None else self.price_per_hour * self.hours

    def explain(self) -> str:
        """Return the plan as text: the groups, how many trials run on them, what limits them, the cost, and why."""
        most = self.trials.min_concurrent_trials
        least = "none" if all(group.min_nodes == 0 for group in self.groups) else "some"
        limit = "" if most >= self.num_trials else f"; limited by {self.trials.limited_by}"
        lines = [
            f"{most} of {counted(self.num_trials, 'trial')} at once at the most, {least} at the least{limit}",
            *(f"  {group}" for group in self.groups),
            *(f"  each trial: {slot}" for slot in self.trials.slots),
            self._cost(),
        ]
        return "\n".join(
            map(one_line, [*lines, *(f"  - {reason}" for reason in (*self.reasons, *self.trials.reasons))])
        )

    def _cost(self) -> str:
        if self.price_per_hour is None:
            return "what it costs is not known: give each node type its price_per_hour"
        head = "with the head" if self.head.price_per_hour is not None else "without the head, whose price is not told"
        text = f"at most {_money(self.price_per_hour)} {self.currency} an hour, {head}"
        if self.price is None:
            return text
        return f"{text}; all trials take {self.hours:.2g} h and cost {_money(self.price)} {self.currency}"


def _money(amount: float) -> str:
    return f"{amount:.2f}" if amount >= 0.1 or amount == 0 else f"{amount:.2g}"
