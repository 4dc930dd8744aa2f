"""Real Ray instances for tests. Ray schedules their simulated GPUs, but no devices exist."""

import os
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager

import pytest
import ray
import ray.cloudpickle
from ray.cluster_utils import Cluster

from tests.stand_ins import write_stand_ins
from tune_policies.probe import nvml

_shared = {}
"""The resources of the shared Ray instance, or an empty dictionary if none is running."""


def share_ray(**resources):
    """Use the shared Ray instance if it has these resources and is idle. Otherwise, start a new instance."""
    if not (_shared == resources and ray.is_initialized() and _is_idle()):
        end_shared_ray()
        _start(resources)
        _shared.update(resources)


def end_shared_ray():
    if _shared:
        _shared.clear()
        ray.shutdown()


def _is_idle(within_s=5):
    """Return whether all CPUs and GPUs become free within ``within_s`` seconds.

    Trials of the previous module may still be ending.
    """
    deadline = time.monotonic() + within_s
    while any(ray.available_resources().get(name) != ray.cluster_resources().get(name) for name in ("CPU", "GPU")):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _start(resources):
    """Start a new Ray instance on this machine, even if another one is running."""
    ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False, **resources)


def wait_until(condition, timeout_s=100):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not true within {timeout_s} s"
        time.sleep(0.05)


@contextmanager
def local_ray(**resources):
    """Start a Ray instance that is not shared."""
    _start(resources)
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def ray_with_stand_ins(folder, **resources):
    """Start Ray with stand-ins for CuPy and NVML and without measured overheads. Yield the file of NVML's values."""
    counts = write_stand_ins(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("STAND_IN_NVML", str(counts))
        patch.setenv("TUNE_POLICIES_CACHE", str(folder))
        with local_ray(**resources):
            yield counts


@contextmanager
def without_prestarted_workers():
    """Prevent raylets from starting worker processes in advance, because most nodes never use them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        patch.setenv("RAY_enable_worker_prestart", "0")
        yield


@contextmanager
def cluster_of(*nodes):
    """Start a cluster with one raylet for each dictionary of ``add_node`` arguments."""
    cluster = Cluster()
    try:
        with without_prestarted_workers():
            for node in nodes:
                cluster.add_node(**node)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def run_without_this_package(function, module, code, folder):
    """Run ``code`` in a process without this package. ``function`` is pickled by value and available as ``task``."""
    for each in (nvml, module):
        ray.cloudpickle.register_pickle_by_value(each)
    try:
        (folder / "task").write_bytes(ray.cloudpickle.dumps(function))
    finally:
        for each in (nvml, module):
            ray.cloudpickle.unregister_pickle_by_value(each)
    head = (
        "import importlib.util, pickle, sys; assert importlib.util.find_spec('tune_policies') is None\n"
        "task = pickle.load(open(sys.argv[1], 'rb'))\n"
    )
    # With -S, Python does not find an editable install. PYTHONPATH adds site-packages.
    done = subprocess.run(
        [sys.executable, "-S", "-c", head + code, folder / "task"],
        env={"PYTHONPATH": sysconfig.get_path("purelib"), "PATH": os.environ["PATH"]},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
