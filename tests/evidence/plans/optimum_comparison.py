"""Plans for random clusters beside the exact optimum, and beside what the usual rule of thumb gives.

The rule of thumb divides the sums of the cluster by the request. It is given every chance here: it sums up only the
nodes that the user allows.
"""

import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from rich.table import Table

from tune_policies import ClusterCapacity, InfeasibleRequestError, SelectingPolicy, TrialPlan
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, TextTable
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.resources import TICKS

from .optimum import Question, optimum
from .random_clusters import draw_cluster, draw_selection, draw_sizing_policy


class Compared(NamedTuple):
    """One policy on one cluster: how many trials at once.

    Attributes:
        seed: What the cluster was drawn from.
        policy: The policy.
        planned: By the plan; 0: the policy says that none fits.
        best: By the optimum.
        rule: By the rule of thumb.
        reason: Why the plan has fewer than the optimum; ``None``: it has as many.
    """

    seed: int
    policy: ResourcePolicy
    planned: int
    best: int
    rule: int
    reason: str | None

    @property
    def kind(self) -> str:
        """The name of the policy that sizes the worker."""
        inner = self.policy.inner if isinstance(self.policy, SelectingPolicy) else self.policy
        return type(inner).__name__


def draw_questions(seed: int, num_policies: int) -> tuple[ClusterCapacity, list[ResourcePolicy]]:
    """Return the cluster of ``seed`` and policies for it, feasible or not; of several device types, one policy each."""
    rng = random.Random(seed)
    capacity = draw_cluster(rng)
    return capacity, list(islice(_draw_choices(rng, capacity), num_policies))


def _draw_choices(rng: random.Random, capacity: ClusterCapacity) -> Iterator[ResourcePolicy]:
    while True:
        policy = draw_sizing_policy(rng)
        yield from (draw_selection(rng, capacity, policy) if rng.random() < 0.4 else policy).choices


def compare(seed: int, capacity: ClusterCapacity, policy: ResourcePolicy) -> Compared:
    """Return what plan, optimum and rule of thumb say."""
    plan = _plan(policy, capacity)
    planned = plan.max_concurrent_trials if plan else 0
    cpus = min(slot.worker.cpus for slot in plan.slots) if plan else 0
    question = Question.of(policy, capacity.nodes, cpus=cpus)
    best = optimum(question, one_share=question.wish.num_workers > 0)
    return Compared(
        seed=seed,
        policy=policy,
        planned=planned,
        best=best,
        rule=rule_of_thumb(question),
        reason=_reason(question, plan) if planned < best else None,
    )


def _plan(policy: ResourcePolicy, capacity: ClusterCapacity) -> TrialPlan | None:
    try:
        return policy.plan(capacity)
    except InfeasibleRequestError:
        return None


def rule_of_thumb(question: Question) -> int:
    """Return the sums of the nodes that are allowed, divided by what a trial asks for in all."""
    wish, nodes = question.wish, question.workers_on
    quotients = []
    for name, needed in wish.amounts.items():
        if needed:
            quotients.append(sum(node.resources.ticks.get(name, 0) for node in nodes) / needed)
    if wish.gpu_ticks:
        quotients.append(sum(node.resources.ticks.get("GPU", 0) for node in nodes) / wish.gpu_ticks)
    if wish.gpu_memory_bytes:
        memory = sum((node.smallest_gpu_memory_bytes or 0) * node.resources.gpus for node in nodes)
        quotients.append(memory / wish.gpu_memory_bytes)
    return math.floor(min(quotients) / wish.processes)


def _reason(question: Question, plan: TrialPlan | None) -> str:
    if plan is None:
        return "the policy says that none fits"
    wish = question.wish
    share = round(plan.worker.gpus * TICKS)
    if wish.gpu_ticks and optimum(question._replace(wish=wish._replace(gpu_ticks=share))) <= plan.max_concurrent_trials:
        return "the share is rounded up to an equal part of a device"
    if wish.num_workers and wish.amounts.get("memory"):
        return "drivers: each node is planned as if all of them were on it"
    return "not explained"


def measure_optimum(seeds: range, *, num_policies: int) -> bool:
    """Print the comparison; return whether no plan is above the optimum."""
    start = time.monotonic()
    compared = []
    for seed in seeds:
        capacity, policies = draw_questions(seed, num_policies)
        compared += [compare(seed, capacity, policy) for policy in policies]
    TextConsole().print(_table(compared))
    above = [each for each in compared if each.planned > each.best]
    below = [each for each in compared if each.planned < each.best]
    print(f"{len(seeds)} clusters, {len(compared)} plans, {time.monotonic() - start:.0f} s")
    fitting = [each for each in compared if each.best > 0]
    equal = sum(each.planned == each.best for each in fitting)
    print(f"a trial fits at all in {len(fitting)}; of these, {equal} ({equal / max(1, len(fitting)):.1%}) are equal")
    print(f"plans above the optimum: {len(above)}; below: {len(below)}")
    for reason, number in Counter(each.reason for each in below).most_common():
        print(f"  {number} below, as {reason}")
    for each in above + below:
        print(f"  seed {each.seed}: {each.planned} planned, {each.best} possible: {each.policy!r}", file=sys.stderr)
    print(describe_machine("ortools"))
    print(f"command: {own_command()}")
    return not above


def _table(compared: list[Compared]) -> Table:
    table = TextTable(title="Trials at once, beside the exact optimum")
    for heading in ("Policy", "Plans", "Equal", "Below", "Above", "Rule above", "Rule: some, where none fits"):
        table.add_column(heading, justify="left" if heading == "Policy" else "right")
    kinds = sorted({each.kind for each in compared})
    for kind in [*kinds, "all"]:
        rows = [each for each in compared if kind in (each.kind, "all")]
        counts = (
            sum(each.planned == each.best for each in rows),
            sum(each.planned < each.best for each in rows),
            sum(each.planned > each.best for each in rows),
            sum(each.rule > each.best for each in rows),
            sum(each.rule > each.best == 0 for each in rows),
        )
        table.add_row(kind, str(len(rows)), *(f"{count} ({count / len(rows):.1%})" for count in counts))
    return table
