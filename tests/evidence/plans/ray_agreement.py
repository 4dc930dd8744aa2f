"""Plans for random clusters, each tried on a real Ray: as many trials as planned run at once, and not one more."""

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from typing import Final, NamedTuple

from tune_policies import ClusterCapacity, InfeasibleRequestError, TrialPlan
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.value import Value

from .random_clusters import Strategy, draw_cluster, draw_policies, leaves_room

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
        fills: Whether the policy says that not one trial more fits.
    """

    policy: ResourcePolicy
    plan: TrialPlan
    strategy: Strategy
    fills: bool


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
        if plan.max_concurrent_trials * (1 + plan.num_workers) <= _MOST_BUNDLES:
            fills = not leaves_room(policy) and not _drivers_may_displace_a_worker(plan, capacity)
            yield Case(policy, plan, strategy, fills)


def _drivers_may_displace_a_worker(plan: TrialPlan, capacity: ClusterCapacity) -> bool:
    """Whether the plan, which holds wherever Ray puts the drivers, is too low where it puts them well."""
    needed = plan.per_worker.memory_bytes
    if not needed:
        return False
    drivers = plan.max_concurrent_trials * (plan.trial.memory_bytes or 0)
    return any((node.resources.memory_bytes or 0) % needed < drivers for node in capacity.nodes)


def check_cluster(seed: int, num_policies: int) -> ClusterResult:
    """Start the cluster of ``seed``, and try plans for it."""
    from .trials_on_ray import cluster_like, disagreement, nodes_that_differ

    start = time.monotonic()
    capacity, cases = draw_cases(seed, num_policies)
    with cluster_like(capacity):
        failures = nodes_that_differ(capacity)
        for case in cases:
            if found := disagreement(case.plan, case.strategy, fills=case.fills):
                failures.append(f"{case.strategy} {case.policy!r}: {found}")
    return ClusterResult(
        seed=seed,
        policies=len(cases),
        trials=sum(case.plan.max_concurrent_trials for case in cases),
        failures=tuple(failures),
        seconds=time.monotonic() - start,
    )


def measure_ray_agreement(seeds: range, *, num_policies: int, jobs: int) -> bool:
    """Check the clusters of all seeds, and print a summary; return whether Ray agreed everywhere."""
    start = time.monotonic()
    results = []
    with _environment_of_its_own():
        for result in _results(seeds, num_policies, jobs):
            results.append(result)
            for trouble in result.troubles:
                _tell(f"seed {result.seed}: {trouble}\n  again: {_command(result.seed, num_policies)}")
            if len(results) % 10 == 0:
                _tell(f"{_counts(results)} after {time.monotonic() - start:.0f} s")
    failed = [result for result in results if result.troubles]
    print(f"{_counts(results)}, {time.monotonic() - start:.0f} s with {jobs} at a time")
    for result in sorted(failed, key=lambda result: result.seed):
        for trouble in result.troubles:
            print(f"seed {result.seed}: {trouble}\n  again: {_command(result.seed, num_policies)}")
    print(describe_machine())
    print(f"command: {own_command()}")
    return not failed


def _counts(results: list[ClusterResult]) -> str:
    policies, trials = sum(result.policies for result in results), sum(result.trials for result in results)
    failures = sum(len(result.failures) for result in results)
    not_run = sum(result.not_run is not None for result in results)
    left_out = f" ({not_run} not run)" if not_run else ""
    return f"{len(results)} clusters{left_out}, {policies} policies, {trials} trials: {failures} failures"


def _results(seeds: range, num_policies: int, jobs: int) -> Iterator[ClusterResult]:
    """Yield results as they come. A cluster that takes its process down with it is a failure, and spoils few others."""
    for first in range(0, len(seeds), jobs * _CLUSTERS_PER_PROCESS):
        # New processes now and then: each cluster leaves some of itself in the process that started it.
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            futures = {
                pool.submit(check_cluster, seed, num_policies): seed
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


def _command(seed: int, num_policies: int) -> str:
    return f"python -m tests.evidence ray-agreement --clusters 1 --seed {seed} --policies {num_policies}"


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
