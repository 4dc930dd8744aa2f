"""With a generated cluster YAML, a real autoscaler adds the requested nodes, and removes them after the trials."""

from typing import NamedTuple

import pytest
import ray.train
from ray import tune
from ray.train import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.on_ray.autoscaling import cluster_of_yaml, requested_nodes, workers_when
from tune_policies import (
    CpuPolicy,
    GpuPolicy,
    MixedPolicy,
    PolicyScheduler,
    ResourcePolicy,
    SelectingPolicy,
    request_capacity,
)
from tune_policies.kuberay import design_cluster
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType
from tune_policies.kuberay.writing import write_cluster
from tune_policies.kuberay.writing.write_options import WriteOptions

# A probe warns because NVML does not list simulated GPUs.
pytestmark = [pytest.mark.timeout(180), pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")]

GIB = 2**30
CPUS = NodeType(name="cpus", cpus=4, memory=8 * GIB, price_per_hour=0.2)
GPU = NodeType(name="gpu", cpus=4, memory=8 * GIB, gpus=1, price_per_hour=1)
IN_EU = CPUS.model_copy(update={"name": "in-eu", "labels": {"zone": "eu"}})
QUARTER = GpuPolicy(gpus=0.25, cpus=1)


class Case(NamedTuple):
    """A cluster for ``num_trials`` trials, and the nodes that start for ``requested`` trials, or for all trials."""

    policy: ResourcePolicy
    node_types: tuple[NodeType, ...]
    num_trials: int
    nodes: dict[str, int]
    v2: bool = True
    min_nodes: int = 0
    requested: int | None = None


CASES = {
    "quarter GPUs": Case(QUARTER, (CPUS, GPU), 5, {"gpu": 2}),
    "quarter GPUs under autoscaler v1": Case(QUARTER, (CPUS, GPU), 5, {"gpu": 2}, v2=False),
    "two slot types": Case(MixedPolicy(GpuPolicy(), CpuPolicy(cpus=4)), (CPUS, GPU), 3, {"cpus": 1, "gpu": 2}),
    "one permanent node": Case(CpuPolicy(cpus=2), (CPUS,), 3, {"cpus": 2}, min_nodes=1),
    "labels": Case(SelectingPolicy(CpuPolicy(cpus=2), label_selector={"zone": "eu"}), (CPUS, IN_EU), 3, {"in-eu": 2}),
    "Train workers with GPUs": Case(GpuPolicy(gpus=0.5, num_workers=2), (GPU,), 2, {"gpu": 2}),
    "fewer trials requested than planned": Case(QUARTER, (GPU,), 12, {"gpu": 1}, requested=3),
}


def planned(case):
    plan = design_cluster(case.policy, NodeCatalog(nodes=case.node_types), case.num_trials)
    groups = tuple(group.model_copy(update={"min_nodes": case.min_nodes}) for group in plan.groups)
    return plan.model_copy(update={"groups": groups, "idle_timeout_s": 2})


def run(plan, number, folder):
    """Run trials under the plan, and return their results."""

    def on_worker():
        ray.train.report({})

    def trial(config):
        if plan.num_workers:
            DataParallelTrainer(
                on_worker,
                scaling_config=plan.scaling_config(),
                run_config=RunConfig(storage_path=str(folder)),
            ).fit()
        tune.report({"square": config["x"] ** 2})

    results = tune.run(
        trial,
        config={"x": tune.grid_search(list(range(number)))},
        **(plan.tune_run_kwargs() if len(plan.slots) == 1 else {"scheduler": PolicyScheduler(plan)}),
        storage_path=str(folder),
        verbose=0,
    )
    return sorted(each.last_result["square"] for each in results.trials)


@pytest.mark.rest
@pytest.mark.parametrize(
    "case",
    [pytest.param(CASES[name], id=name, marks=() if name == "quarter GPUs" else pytest.mark.slow) for name in CASES],
)
def test_requested_nodes_start_and_run_the_trials_and_are_then_removed(case, tmp_path):
    plan = planned(case)
    text = write_cluster(plan, WriteOptions(format="cluster-yaml"))
    number = case.requested or plan.trials.max_concurrent_trials

    with cluster_of_yaml(text, v2=case.v2):
        with request_capacity(plan.trials, number):
            started = workers_when(case.nodes)
            squares = run(plan.trials, number, tmp_path)
        still_requested = requested_nodes()
        remaining = workers_when({name: case.min_nodes for name in case.nodes if case.min_nodes})

    assert started == case.nodes
    assert squares == [x**2 for x in range(number)]
    assert still_requested == {}
    assert remaining == {name: case.min_nodes for name in case.nodes if case.min_nodes}
