"""Ray still adds up the GPU fractions of a node, outside of the node itself.

Plans therefore use equal fractions of 1/k, with which both ways of counting agree. If a test of this module fails, this
version of Ray counts fractions for each device, as the pull request "Fix GPU fractional scheduling by tracking
per-instance availability" (ray-project/ray, 62005) proposes. Then unequal fractions are safe, and the rounding in
``policies/equal_fractions.py``, its page in the concepts and these tests can be changed.
"""

import logging
import time

import pytest
import ray

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
def test_actors_wait_for_a_node_whose_devices_have_too_little_free_each():
    """12 actors of 0.3 GPU fit on 4 devices, but Ray places more on a node than its devices can hold."""

    @ray.remote(num_cpus=0, num_gpus=0.3)
    class Holder:
        def node(self):
            return ray.get_runtime_context().get_node_id()

    with cluster_of({"num_cpus": 8, "num_gpus": 2}, {"num_cpus": 8, "num_gpus": 2}) as cluster:
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        calls = [holder.node.remote() for holder in [Holder.remote() for _ in range(12)]]
        running = 0
        last_change = time.monotonic()
        while running < len(calls) and time.monotonic() < last_change + 10:
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=1)
            if len(ready) > running:
                running, last_change = len(ready), time.monotonic()
        ray.shutdown()

    assert running < len(calls), CHANGED
