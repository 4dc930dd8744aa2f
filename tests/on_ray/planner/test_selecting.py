"""Trials and workers run only on the nodes that a plan selects."""

import pytest
import ray
from ray import tune
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.on_ray.rays import cluster_of
from tune_policies import CpuPolicy, SelectingPolicy, probe_cluster


def report_node(config):
    tune.report({"node_id": ray.get_runtime_context().get_node_id()})


@pytest.fixture(scope="module")
def nodes():
    """Start a cluster, and return the node IDs keyed by zone. The zone of the head node is ``None``."""
    zones = ({}, {"labels": {"zone": "eu"}}, {"labels": {"zone": "us"}})
    with cluster_of(*({"num_cpus": 2, "object_store_memory": 100 * 2**20, **zone} for zone in zones)) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield {node.labels.get("zone"): node.node_id for node in probe_cluster().nodes}


def plan_on(policy):
    return policy.plan(probe_cluster())


@pytest.mark.rest
def test_trials_of_tune_run_use_only_selected_nodes(nodes, tmp_path):
    plan = plan_on(SelectingPolicy(CpuPolicy(), label_selector={"zone": "in(us, asia)"}))

    done = tune.run(
        report_node,
        resources_per_trial=plan.resources_per_trial,
        num_samples=3,
        storage_path=str(tmp_path),
        verbose=0,
    )

    assert {trial["node_id"] for trial in done.results.values()} == {nodes["us"]}


@pytest.mark.slow
def test_train_workers_do_not_run_on_excluded_nodes(nodes, tmp_path):
    excluded = (nodes[None], nodes["us"])
    plan = plan_on(SelectingPolicy(CpuPolicy(num_workers=2), exclude_nodes=excluded))

    def record_node():
        context = ray.get_runtime_context()
        (tmp_path / context.get_worker_id()).write_text(context.get_node_id())

    DataParallelTrainer(record_node, scaling_config=plan.scaling_config()).fit()

    assert [path.read_text() for path in tmp_path.iterdir()] == [nodes["eu"]] * 2


@pytest.mark.rest
def test_actors_with_remote_options_run_on_selected_nodes(nodes):
    plan = plan_on(SelectingPolicy(CpuPolicy(), label_selector={"zone": "!us"}, exclude_head=True))

    class Where:
        def node_id(self):
            return ray.get_runtime_context().get_node_id()

    actors = [
        ray.remote(**plan.remote_options())(Where).remote(),
        ray.remote(Where).options(**plan.remote_options()).remote(),
    ]
    assert set(ray.get([actor.node_id.remote() for actor in actors])) == {nodes["eu"]}
