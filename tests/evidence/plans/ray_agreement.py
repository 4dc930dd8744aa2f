"""Plans for random clusters, each tried on a real Ray: as many trials as planned run at once, and not one more."""

import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import groupby, islice
from multiprocessing import get_context
from typing import Final, NamedTuple

from tune_policies import AcceleratorPolicy, AutoscalingPolicy, ClusterCapacity, InfeasibleRequestError, TrialPlan
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.resources import TICKS
from tune_policies.values.value import Value

from .random_clusters import (
    Strategy,
    draw_cluster,
    draw_larger_cluster,
    draw_mixed_policies,
    draw_policies,
    leaves_room,
)

_MOST_BUNDLES: Final = 80
"""Plans with more are passed over, as each bundle costs time."""

_MOST_DRAWS: Final = 100
_CLUSTERS_PER_PROCESS: Final = 10


class Case(NamedTuple):
    """A plan to be tried.

    Attributes:
        policy: What made the plan.
        plan: The plan.
        strategy: How Train spreads the workers of a trial over nodes.
        filled: The types of slots of which the policy says that not one more fits.
        capacity: The nodes for it, once those to add are there.
    """

    policy: ResourcePolicy
    plan: TrialPlan
    strategy: Strategy
    filled: frozenset[int]
    capacity: ClusterCapacity


class ClusterResult(Value):
    """What was found on one cluster.

    Attributes:
        seed: What it was drawn from.
        policies: Policies tried.
        trials: Trials that ran at once, over all policies.
        failures: In what Ray disagreed.
        not_run: Why nothing, or not all, was tried; ``None``: all was.
        seconds: How long it took.
    """

    seed: int
    policies: int = 0
    trials: int = 0
    failures: tuple[str, ...] = ()
    not_run: str | None = None
    seconds: float = 0

    @property
    def troubles(self) -> tuple[str, ...]:
        """What a reader must know of it, a sentence each."""
        return self.failures if self.not_run is None else (*self.failures, f"not run to its end: {self.not_run}")


def draw_cases(seed: int, num_policies: int) -> tuple[ClusterCapacity, list[Case]]:
    """Return the cluster of ``seed`` and so many plans for it, fewer where hardly any policy is feasible."""
    rng = random.Random(seed)
    capacity = draw_cluster(rng)
    return capacity, list(islice(_cases(rng, capacity), num_policies))


def _cases(rng: random.Random, capacity: ClusterCapacity) -> Iterator[Case]:
    for policy in islice(draw_policies(rng, capacity), _MOST_DRAWS):
        strategy: Strategy = rng.choice(("PACK", "SPREAD"))
        try:
            plan = policy.plan(capacity)
        except InfeasibleRequestError:
            continue
        if _num_bundles(plan) <= _MOST_BUNDLES:
            fills = not leaves_room(policy) and not _drivers_may_displace_a_worker(plan, capacity)
            yield Case(policy, plan, strategy, frozenset(_of_one_share(plan) if fills else ()), capacity)


def draw_mixed_cases(seed: int, num_policies: int) -> tuple[ClusterCapacity, list[Case]]:
    """Return the same of plans with several types of slots, for other accelerators, or with nodes to add."""
    rng = random.Random(seed)
    capacity = draw_larger_cluster(rng)
    return capacity, list(islice(_mixed_cases(rng, capacity), num_policies))


def _mixed_cases(rng: random.Random, capacity: ClusterCapacity) -> Iterator[Case]:
    for policy in islice(draw_mixed_policies(rng), _MOST_DRAWS):
        strategy: Strategy = rng.choice(("PACK", "SPREAD"))
        try:
            plan = policy.plan(capacity)
        except InfeasibleRequestError:
            continue
        is_of_interest = len(plan.slots) > 1 or plan.nodes_to_add or isinstance(policy, AcceleratorPolicy)
        if is_of_interest and _num_bundles(plan) <= _MOST_BUNDLES:
            grown = _as_alive(capacity.with_nodes_added(plan.nodes_to_add))
            yield Case(policy, plan, strategy, frozenset(_filled_types(plan, policy)), grown)


def _filled_types(plan: TrialPlan, policy: ResourcePolicy) -> Iterator[int]:
    """Yield the types of slots of which not one more fits.

    That is not said where Train places workers among others, as their worst place counts, and where the autoscaler
    could add nodes.
    """
    if not isinstance(policy, AutoscalingPolicy) and not any(slot.num_workers for slot in plan.slots):
        yield from _of_one_share(plan)


def _of_one_share(plan: TrialPlan) -> Iterator[int]:
    """Yield the types of slots without devices of which another type has other shares: these may not share a node."""
    shares_of: dict[str, set[float]] = defaultdict(set)
    for slot in plan.slots:
        for name in DEVICE_RESOURCES & slot.worker.ticks.keys():
            shares_of[name].add(min(TICKS, slot.worker.ticks[name]))
    for slot_type, slot in enumerate(plan.slots):
        if all(len(shares_of[name]) == 1 for name in DEVICE_RESOURCES & slot.worker.ticks.keys()):
            yield slot_type


def _as_alive(capacity: ClusterCapacity) -> ClusterCapacity:
    """Return the cluster with the nodes that were to be added, as they are once they have come."""
    come = {
        node.node_id: node.model_copy(update={"is_expected": False, "node_id": f"{index:056x}"})
        for index, node in enumerate(capacity.nodes)
        if node.is_expected
    }
    return capacity.with_nodes([come.get(node.node_id, node) for node in capacity.nodes])


def _num_bundles(plan: TrialPlan) -> int:
    return sum(slot.max_concurrent_trials * (1 + slot.num_workers) for slot in plan.slots)


def _drivers_may_displace_a_worker(plan: TrialPlan, capacity: ClusterCapacity) -> bool:
    """Whether the plan, which holds wherever Ray puts the drivers, is too low where it puts them well."""
    needed = plan.per_worker.memory_bytes
    if not needed:
        return False
    drivers = plan.max_concurrent_trials * (plan.trial.memory_bytes or 0)
    return any((node.resources.memory_bytes or 0) % needed < drivers for node in capacity.nodes)


def check_cluster(seed: int, num_policies: int, *, mixed: bool = False) -> ClusterResult:
    """Start the cluster of ``seed``, and try plans for it; with nodes to add, on a cluster that has them."""
    from .trials_on_ray import cluster_like, nodes_that_differ

    start = time.monotonic()
    _, cases = (draw_mixed_cases if mixed else draw_cases)(seed, num_policies)
    failures = []
    for nodes, on_nodes in groupby(sorted(cases, key=_nodes), key=_nodes):
        of_cluster = list(on_nodes)
        with cluster_like(of_cluster[0].capacity):
            failures += nodes_that_differ(of_cluster[0].capacity)
            for case in of_cluster:
                if found := _disagreement(case):
                    failures.append(f"{case.strategy} {case.policy!r}, with {len(nodes)} nodes: {found}")
    return ClusterResult(
        seed=seed,
        policies=len(cases),
        trials=sum(case.plan.max_concurrent_trials for case in cases),
        failures=tuple(failures),
        seconds=time.monotonic() - start,
    )


def _nodes(case: Case) -> list[str]:
    return sorted(node.node_id + str(node.resources) for node in case.capacity.nodes)


def _disagreement(case: Case) -> str | None:
    from .trials_on_ray import disagreement, disagreement_beside

    if len(case.plan.slots) == 1:
        return disagreement(case.plan, case.strategy, fills=bool(case.filled))
    return disagreement_beside(case.plan, case.capacity, case.strategy, filled=case.filled)


def measure_ray_agreement(seeds: range, *, num_policies: int, jobs: int, mixed: bool) -> bool:
    """Check the clusters of all seeds, and print a summary; return whether Ray agreed everywhere."""
    start = time.monotonic()
    results = []
    with _environment_of_its_own():
        for result in _results(seeds, num_policies, jobs, mixed=mixed):
            results.append(result)
            for trouble in result.troubles:
                _tell(f"seed {result.seed}: {trouble}\n  again: {_command(result.seed, num_policies, mixed=mixed)}")
            if len(results) % 10 == 0:
                _tell(f"{_counts(results)} after {time.monotonic() - start:.0f} s")
    failed = [result for result in results if result.troubles]
    print(f"{_counts(results)}, {time.monotonic() - start:.0f} s with {jobs} at a time")
    for result in sorted(failed, key=lambda result: result.seed):
        for trouble in result.troubles:
            print(f"seed {result.seed}: {trouble}\n  again: {_command(result.seed, num_policies, mixed=mixed)}")
    print(describe_machine())
    print(f"command: {own_command()}")
    return not failed


def _counts(results: list[ClusterResult]) -> str:
    policies, trials = sum(result.policies for result in results), sum(result.trials for result in results)
    failures = sum(len(result.failures) for result in results)
    not_run = sum(result.not_run is not None for result in results)
    left_out = f" ({not_run} not run)" if not_run else ""
    return f"{len(results)} clusters{left_out}, {policies} policies, {trials} trials: {failures} failures"


def _results(seeds: range, num_policies: int, jobs: int, *, mixed: bool) -> Iterator[ClusterResult]:
    """Yield results as they come. A cluster that takes its process down with it is a failure, and spoils few others."""
    for first in range(0, len(seeds), jobs * _CLUSTERS_PER_PROCESS):
        # New processes now and then: each cluster leaves some of itself in the process that started it.
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            futures = {
                pool.submit(check_cluster, seed, num_policies, mixed=mixed): seed
                for seed in seeds[first : first + jobs * _CLUSTERS_PER_PROCESS]
            }
            for future in as_completed(futures):
                yield _result(futures[future], future)


def _result(seed: int, future: Future[ClusterResult]) -> ClusterResult:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001 what Ray may raise has no common base, and the other clusters still count
        return ClusterResult(seed=seed, not_run=f"{type(error).__name__}: {error}")


@contextmanager
def _environment_of_its_own() -> Iterator[None]:
    """Keep the clusters away from any other Ray on the machine. Nothing here has imported Ray yet."""
    before = dict(os.environ)
    # Short, as Ray puts sockets there.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ.update(RAY_TMPDIR=folder, RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
        # Reservations run nothing, and a process for each of 32 logical CPUs would keep the machine busy.
        os.environ.update(RAY_prestart_worker_first_driver="0", RAY_enable_worker_prestart="0")
        # Ray refuses more logical GPUs than this names.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _command(seed: int, num_policies: int, *, mixed: bool) -> str:
    option = " --mixed" if mixed else ""
    return f"python -m tests.evidence ray-agreement --clusters 1 --seed {seed} --policies {num_policies}{option}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
