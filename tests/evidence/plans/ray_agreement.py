"""Tests on real Ray clusters whether all planned trials run concurrently, and whether no further trial fits."""

import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import groupby, islice
from multiprocessing import get_context
from typing import Final, NamedTuple

from tune_policies import AcceleratorPolicy, AutoscalingPolicy, ClusterCapacity, InfeasibleRequestError, TrialPlan
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.resources import TICKS

from .random_clusters import (
    Strategy,
    draw_cluster,
    draw_larger_cluster,
    draw_mixed_policies,
    draw_policies,
    leaves_room,
)

_MOST_BUNDLES: Final = 80
"""Plans with more bundles are skipped, because each bundle takes time."""

_MOST_DRAWS: Final = 100
_CLUSTERS_PER_PROCESS: Final = 10
"""The number of clusters that a process starts before it is replaced. Each cluster leaks threads and memory."""


class Case(NamedTuple):
    """A plan to test.

    Attributes:
        policy: The policy of the plan.
        plan: The plan.
        strategy: Train's placement strategy for the workers of a trial.
        filled: The indices of the slot types for which no further trial fits.
        capacity: The nodes of the plan, including the nodes to add.
    """

    policy: ResourcePolicy
    plan: TrialPlan
    strategy: Strategy
    filled: frozenset[int]
    capacity: ClusterCapacity


class ClusterResult(NamedTuple):
    """The result for one cluster: its seed, the numbers of tested policies and trials, and failures as sentences."""

    seed: int
    policies: int
    trials: int
    failures: tuple[str, ...]


def draw_cases(seed: int, num_policies: int, *, mixed: bool = False) -> list[Case]:
    """Return ``num_policies`` plans for the cluster of ``seed``, or fewer if hardly any policy is feasible.

    With ``mixed``, the plans have several slot types, accelerators other than GPUs, or nodes to add.
    """
    rng = random.Random(seed)
    draw = draw_larger_cluster if mixed else draw_cluster
    capacity = draw(rng)
    return list(islice(_cases(rng, capacity, mixed=mixed), num_policies))


def _cases(rng: random.Random, capacity: ClusterCapacity, *, mixed: bool) -> Iterator[Case]:
    policies = draw_mixed_policies(rng) if mixed else draw_policies(rng, capacity)
    for policy in islice(policies, _MOST_DRAWS):
        strategy: Strategy = rng.choice(("PACK", "SPREAD"))
        try:
            plan = policy.plan(capacity)
        except InfeasibleRequestError:
            continue
        if sum(slot.max_concurrent_trials * (1 + slot.num_workers) for slot in plan.slots) > _MOST_BUNDLES:
            continue
        if mixed:
            if len(plan.slots) > 1 or plan.nodes_to_add or isinstance(policy, AcceleratorPolicy):
                # If drivers share host memory with Train workers, the plan assumes the worst placement of the drivers.
                shares_memory = any(slot.num_workers and slot.worker.memory_bytes for slot in plan.slots)
                fills = not isinstance(policy, AutoscalingPolicy) and not shares_memory
                grown = _as_alive(capacity.with_nodes_added(plan.nodes_to_add))
                filled = frozenset(_with_one_fraction(plan)) if fills else frozenset()
                yield Case(policy, plan, strategy, filled, grown)
        else:
            fills = not leaves_room(policy) and not _drivers_may_displace_a_worker(plan, capacity)
            filled = frozenset({0}) if fills else frozenset()
            yield Case(policy, plan, strategy, filled, capacity)


def _with_one_fraction(plan: TrialPlan) -> Iterator[int]:
    """Yield the indices of the slot types that request the same fraction of each device as all other slot types."""
    fractions: dict[str, set[float]] = defaultdict(set)
    for slot in plan.slots:
        for name in DEVICE_RESOURCES & slot.worker.ticks.keys():
            fractions[name].add(min(TICKS, slot.worker.ticks[name]))
    for slot_type, slot in enumerate(plan.slots):
        if all(len(fractions[name]) == 1 for name in DEVICE_RESOURCES & slot.worker.ticks.keys()):
            yield slot_type


def _as_alive(capacity: ClusterCapacity) -> ClusterCapacity:
    """Return the cluster with alive nodes in place of the nodes to add."""
    nodes = []
    for index, node in enumerate(capacity.nodes):
        if node.is_expected:
            node = node.model_copy(update={"is_expected": False, "node_id": f"{index:056x}"})
        nodes.append(node)
    return capacity.with_nodes(nodes)


def _drivers_may_displace_a_worker(plan: TrialPlan, capacity: ClusterCapacity) -> bool:
    """Return whether more trials than planned may fit, because the plan assumes the worst placement of the drivers."""
    needed = plan.common_slot.per_worker.memory_bytes
    if not needed:
        return False
    drivers = plan.max_concurrent_trials * (plan.trial.memory_bytes or 0)
    return any((node.resources.memory_bytes or 0) % needed < drivers for node in capacity.nodes)


def check_cluster(seed: int, num_policies: int, *, mixed: bool = False) -> ClusterResult:
    """Start the cluster of ``seed``, including nodes to add, and test plans for it."""
    from .trials_on_ray import cluster_like, disagreement, disagreement_of_types, nodes_that_differ

    cases = draw_cases(seed, num_policies, mixed=mixed)
    failures = []
    for nodes, on_nodes in groupby(sorted(cases, key=_nodes), key=_nodes):
        of_cluster = list(on_nodes)
        with cluster_like(of_cluster[0].capacity):
            failures += nodes_that_differ(of_cluster[0].capacity)
            for policy, plan, strategy, filled, capacity in of_cluster:
                if len(plan.slots) == 1:
                    found = disagreement(plan, strategy, fills=bool(filled))
                else:
                    found = disagreement_of_types(plan, capacity, strategy, filled=filled)
                if found:
                    failures.append(f"{strategy} {policy!r}, with {len(nodes)} nodes: {found}")
    return ClusterResult(seed, len(cases), sum(case.plan.max_concurrent_trials for case in cases), tuple(failures))


def _nodes(case: Case) -> list[str]:
    return sorted(node.node_id + str(node.resources) for node in case.capacity.nodes)


def measure_ray_agreement(seeds: range, *, num_policies: int, jobs: int, mixed: bool) -> bool:
    """Check the clusters of all seeds, and print a summary. Return whether Ray agreed with all plans."""
    start = time.monotonic()
    results: list[ClusterResult] = []
    options = f"--policies {num_policies}"
    if mixed:
        options += " --mixed"
    context, tasks = get_context("spawn"), _CLUSTERS_PER_PROCESS
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=tasks) as pool:
        futures = {pool.submit(check_cluster, seed, num_policies, mixed=mixed): seed for seed in seeds}
        for future in as_completed(futures):
            seed = futures[future]
            try:
                result = future.result()
            except Exception as error:  # noqa: BLE001 Ray's errors have no common base class
                result = ClusterResult(seed, 0, 0, (f"the test did not finish: {type(error).__name__}: {error}",))
            results.append(result)
            for failure in result.failures:
                print(f"seed {seed}: {failure}\n  repeat: ray-agreement --clusters 1 --seed {seed} {options}")
            print(
                f"{len(results)} of {len(seeds)} clusters, {time.monotonic() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    policies = sum(result.policies for result in results)
    trials = sum(result.trials for result in results)
    failures = sum(len(result.failures) for result in results)
    print(f"{len(results)} clusters, {policies} policies, {trials} trials, {failures} failures")
    print(f"{time.monotonic() - start:.0f} s, {jobs} in parallel\n{describe_machine()}\ncommand: {own_command()}")
    return not failures
