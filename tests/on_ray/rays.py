"""Real Rays for tests. GPUs are logical: real to Ray's scheduler, without a device behind them."""

import os
from contextlib import contextmanager

import pytest
import ray
from ray.cluster_utils import Cluster

from tests.stand_ins import write_stand_ins


@contextmanager
def local_ray(**resources):
    """A Ray of its own on this machine, never one that runs already."""
    ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False, **resources)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def ray_with_stand_ins(folder, **resources):
    """A Ray whose workers find stand-ins for CuPy and NVML, and no measured overheads; the file of NVML's counts."""
    counts = write_stand_ins(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("STAND_IN_NVML", str(counts))
        patch.setenv("TUNE_POLICIES_CACHE", str(folder))
        with local_ray(**resources):
            yield counts


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
