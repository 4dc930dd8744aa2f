"""Real Rays for tests. GPUs are logical: real to Ray's scheduler, without a device behind them."""

from contextlib import contextmanager

import ray
from ray.cluster_utils import Cluster


@contextmanager
def local_ray(**resources):
    """A Ray of its own on this machine, never one that runs already."""
    ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False, **resources)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def cluster_of(*nodes):
    """A cluster with one raylet for each dict of ``add_node`` arguments."""
    cluster = Cluster()
    try:
        for node in nodes:
            cluster.add_node(**node)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
