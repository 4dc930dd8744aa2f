"""Ray still adds up the GPU fractions of a node, outside of the node itself.

Plans therefore use equal fractions of 1/k, with which both ways of counting agree. If a test of this module fails, this
version of Ray counts fractions for each device, as the pull request "Fix GPU fractional scheduling by tracking
per-instance availability" (ray-project/ray, 62005) proposes. Then unequal fractions are safe, and the rounding in
``policies/equal_fractions.py``, its page in the concepts and these tests can be changed.
"""

import logging

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tests.autoscaler_v2 import nodes_launched_for_groups
from tests.on_ray.rays import cluster_of
from tune_policies.placement.trial_slot import Bundle

pytestmark = pytest.mark.ray_border

CHANGED = "Ray counts GPU fractions for each device now: see the docstring of this module"


def test_the_autoscaler_places_fractions_on_a_node_that_fit_on_no_single_device(caplog):
    caplog.set_level(logging.ERROR, logger="ray")
    node = {"resources": {"CPU": 8, "GPU": 2}, "max_workers": 10}
    types = {"head": {"resources": {}, "max_workers": 0}, "gpus": node}
    config = {"head_node_type": "head", "max_workers": 10, "available_node_types": types}

    launched = nodes_launched_for_groups(config, [[Bundle({"GPU": 0.6}, {})]] * 3)

    assert launched == {"gpus": 1}, CHANGED


@pytest.mark.rest
@pytest.mark.timeout(120)
def test_an_actor_waits_for_a_node_whose_devices_have_too_little_free_each():
    """Ray adds up 0.4 and 0.4 free GPUs on the less used node, although 0.6 fit on a device of the other node."""

    @ray.remote(num_cpus=0, num_gpus=0.6)
    class Holder:
        def start(self):
            pass

    with cluster_of({"num_cpus": 8, "num_gpus": 2}, {"num_cpus": 8, "num_gpus": 1}) as cluster:
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        ids = {node["Resources"]["GPU"]: node["NodeID"] for node in ray.nodes()}
        two_gpus = NodeAffinitySchedulingStrategy(ids[2], soft=False)
        one_gpu = NodeAffinitySchedulingStrategy(ids[1], soft=False)
        others = [Holder.options(scheduling_strategy=two_gpus).remote() for _ in range(2)]
        # 7 of 8 CPUs in use: Ray chooses the other node, whose GPUs are used by 60 %.
        others.append(Holder.options(scheduling_strategy=one_gpu, num_gpus=0.35, num_cpus=7).remote())
        ray.get([other.start.remote() for other in others], timeout=60)

        chosen, pinned = Holder.remote(), Holder.options(scheduling_strategy=one_gpu).remote()
        ray.get(pinned.start.remote(), timeout=60)
        started, _ = ray.wait([chosen.start.remote()], timeout=5)
        ray.shutdown()

    assert not started, CHANGED
