"""Compares plans for random clusters with the exact optimum and with a common rule of thumb.

The rule of thumb divides the total resources of the cluster by the request. Here, the total includes only the nodes
that the user allows.
"""

import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from tune_policies import ClusterCapacity, InfeasibleRequestError, SelectingPolicy, TrialPlan
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.resources import TICKS

from .optimum import Question, optimum
from .random_clusters import draw_cluster, draw_selection, draw_sizing_policy


class Compared(NamedTuple):
    """The number of concurrent trials in a policy's plan, in the solver's optimum, and according to the rule of thumb.

    Attributes:
        seed: The seed of the cluster.
        policy: The policy.
        planned: The number of trials in the plan, or 0 if the policy finds the request infeasible.
        best: The number of trials in the solver's optimum.
        rule: The number of trials according to the rule of thumb.
        reason: The reason why the plan has fewer trials than the optimum, or ``None`` if it has at least as many.
    """

    seed: int
    policy: ResourcePolicy
    planned: int
    best: int
    rule: int
    reason: str | None


def draw_questions(seed: int, num_policies: int) -> tuple[ClusterCapacity, list[ResourcePolicy]]:
    """Return a random cluster and random policies for it. Some policies may be infeasible."""
    rng = random.Random(seed)
    capacity = draw_cluster(rng)

    def draw_policies() -> Iterator[ResourcePolicy]:
        while True:
            policy = draw_sizing_policy(rng)  # each device type of a policy counts as a separate policy
            yield from (draw_selection(rng, capacity, policy) if rng.random() < 0.4 else policy).choices

    return capacity, list(islice(draw_policies(), num_policies))


def compare(seed: int, capacity: ClusterCapacity, policy: ResourcePolicy) -> Compared:
    """Return the number of concurrent trials according to the plan, the solver and the rule of thumb."""
    try:
        plan = policy.plan(capacity)
    except InfeasibleRequestError:
        plan = None
    planned = plan.max_concurrent_trials if plan else 0
    cpus = min(slot.worker.cpus for slot in plan.slots) if plan else 0
    question = Question.of(policy, capacity.nodes, cpus=cpus)
    best = optimum(question, one_share=question.request.num_workers > 0)
    reason = _reason(question, plan) if planned < best else None
    return Compared(seed, policy, planned, best, rule_of_thumb(question), reason)


def rule_of_thumb(question: Question) -> int:
    """Return the number of trials that would fit if one node had the total resources of the allowed nodes."""
    request, nodes = question.request, question.workers_on
    wanted = {**request.amounts, "GPU": request.gpu_ticks}
    quotients = [
        sum(node.resources.ticks.get(name, 0) for node in nodes) / needed for name, needed in wanted.items() if needed
    ]
    if request.gpu_memory_bytes:
        memory = sum((node.smallest_gpu_memory_bytes or 0) * node.resources.gpus for node in nodes)
        quotients.append(memory / request.gpu_memory_bytes)
    return math.floor(min(quotients) / request.processes)


def _reason(question: Question, plan: TrialPlan | None) -> str:
    if plan is None:
        return "the policy finds the request infeasible"
    request = question.request
    fraction = round(plan.worker.gpus * TICKS)
    rounded = question._replace(request=request._replace(gpu_ticks=fraction))
    if request.gpu_ticks and optimum(rounded) <= plan.max_concurrent_trials:
        return "the GPU fraction is rounded up to an equal part"
    if request.num_workers and request.amounts.get("memory"):
        return "the plan reserves memory for all trial drivers on every node"
    return "the reason is unknown"


def measure_optimum(seeds: range, *, num_policies: int) -> bool:
    """Print the comparison. Return whether no plan has more trials than the optimum."""
    start = time.monotonic()
    compared = []
    for seed in seeds:
        capacity, policies = draw_questions(seed, num_policies)
        compared += [compare(seed, capacity, policy) for policy in policies]
    _print_table(compared)
    above = [plan for plan in compared if plan.planned > plan.best]
    below = [plan for plan in compared if plan.planned < plan.best]
    print(f"{len(seeds)} clusters, {len(compared)} plans, {time.monotonic() - start:.0f} s")
    feasible = [plan for plan in compared if plan.best > 0]
    equal = sum(plan.planned == plan.best for plan in feasible)
    print(f"{equal} of {len(feasible)} plans for feasible requests equal the optimum")
    for reason, number in Counter(plan.reason for plan in below).most_common():
        print(f"plans below the optimum: {number} ({reason})")
    for plan in above + below:
        print(f"seed {plan.seed}: {plan.planned} planned, {plan.best} possible: {plan.policy!r}", file=sys.stderr)
    print(f"{describe_machine('ortools')}\ncommand: {own_command()}")
    return not above


def _print_table(compared: list[Compared]) -> None:
    by_kind: dict[str, list[Compared]] = {}
    for plan in compared:
        inner = plan.policy
        if isinstance(inner, SelectingPolicy):
            inner = inner.inner
        by_kind.setdefault(type(inner).__name__, []).append(plan)
    headings = ("Policy", "Plans", "Equal", "Below", "Above", "Rule above", "Rule above 0, optimum 0")
    table = empty_table("Plans and the rule of thumb compared with the optimum", *headings)
    for kind, rows in (*sorted(by_kind.items()), ("all", compared)):
        counts = (
            sum(plan.planned == plan.best for plan in rows),
            sum(plan.planned < plan.best for plan in rows),
            sum(plan.planned > plan.best for plan in rows),
            sum(plan.rule > plan.best for plan in rows),
            sum(plan.rule > plan.best == 0 for plan in rows),
        )
        table.add_row(kind, str(len(rows)), *(f"{count} ({count / len(rows):.1%})" for count in counts))
    TextConsole().print(table)
