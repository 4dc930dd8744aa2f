"""The benchmark of plans on mixed clusters: what counts as possible, and what as promised in vain."""

import importlib.util
import random
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.clusters import gpu_node
from tests.evidence.plans.node_shapes import SOURCES, PricedCluster, draw_priced_cluster
from tests.evidence.plans.other_tools import FOR_A_NUMBER, FOR_MANY, Claim, Need, Promise
from tests.evidence.plans.plan_quality import BEST, OURS, Case, check, compare, draw_cases, most_possible
from tests.unit import solver
from tune_policies import ClusterCapacity, GpuMemoryPolicy
from tune_policies.values.units import GIB

T4 = gpu_node("t4", cpus=8, gpus=2, gpu_memory_gib=16, accelerator_type="T4")
A100 = gpu_node("a100", cpus=64, gpus=4, gpu_memory_gib=80, accelerator_type="A100")
HEAD = gpu_node("head", cpus=0, gpus=1, gpu_memory_gib=16, accelerator_type="T4")


def case_of(*needs, num_trials=100, is_divided=False, nodes=(T4, A100, HEAD)):
    cluster = PricedCluster(ClusterCapacity(nodes=nodes), "here", None)
    return Case("", GpuMemoryPolicy(gpu_memory="6GiB"), needs, num_trials, is_divided, cluster)


def test_the_most_possible_is_counted_device_by_device():
    case = case_of(Need(gpu_bytes=6 * GIB))

    assert check(case, most_possible(case)).trials == (2 * 2 + 4 * 13,)


def test_slots_of_a_second_type_have_the_cpus_that_the_first_leaves():
    case = case_of(Need(cpus=1, share=2500), Need(cpus=2))

    assert check(case, most_possible(case)).trials == (8 + 16, 0 + 24)


@pytest.mark.parametrize(("num_trials", "possible"), [(100, 72), (50, 50)])
def test_of_a_divided_cluster_no_more_are_possible_than_there_are_trials(num_trials, possible):
    case = case_of(Need(cpus=1), num_trials=num_trials, is_divided=True)

    assert most_possible(case).trials == possible


@pytest.mark.parametrize(
    ("claim", "runs"),
    [
        pytest.param(Claim(T4, 4, 1, 5000), 4, id="what fits"),
        pytest.param(Claim(T4, 4, 4, 5000), 2, id="no more than there are CPUs"),
        pytest.param(Claim(T4, 9, 0.5, 5000), 4, id="no more than the devices have room for"),
        pytest.param(Claim(T4, 6, 1, 3333), 4, id="no more than their memory holds"),
        pytest.param(Claim(T4, 6, 1, 3333, is_limited=True), 0, id="none that is held to less memory than it needs"),
        pytest.param(Claim(HEAD, 1, 0, 10_000), 0, id="none on a node that is kept free"),
    ],
)
def test_what_finds_no_room_or_no_memory_is_promised_in_vain(claim, runs):
    result = check(case_of(Need(gpu_bytes=6 * GIB)), Promise(claim.workers, [claim]))

    assert (result.at_once, result.in_vain) == (runs, claim.workers - runs)


def test_no_plan_promises_in_vain_or_has_more_than_is_possible():
    rows = [compare(case) for seed in range(12) for case in draw_cases(seed)]

    assert [row.case for row in rows if row.results[OURS].in_vain] == []
    assert [row.case for row in rows if row.results[OURS].at_once > row.results[BEST].at_once] == []


@pytest.mark.skipif(importlib.util.find_spec("ortools") is None, reason="needs OR-tools")
def test_the_most_possible_is_what_the_solver_finds():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        found = process.submit(solver.most_possible, range(4)).result(timeout=120)

    assert [counted for counted, _ in found] == [best for _, best in found]


def test_clusters_come_from_every_source_and_most_are_mixed():
    clusters = [draw_priced_cluster(random.Random(seed)) for seed in range(60)]

    assert {cluster.source for cluster in clusters} == SOURCES.keys()
    assert all(len(cluster.capacity.groups) > 1 for cluster in clusters)
    assert all((cluster.price_per_hour is not None) == (cluster.source == "Azure") for cluster in clusters)


@pytest.mark.parametrize("rule", [*FOR_MANY.values(), *FOR_A_NUMBER.values()], ids=lambda rule: rule.__name__)
def test_every_rule_says_where_it_is_documented(rule):
    assert "https://" in rule.__doc__
