"""Real Rays for tests. GPUs are logical: real to Ray's scheduler, without a device behind them."""

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
"""The resources of the Ray that modules share; none where there is no such Ray."""


def share_ray(**resources):
    """The Ray that the module before has used, if it has these resources and nothing is left on it; else a new one."""
    if not (_shared == resources and ray.is_initialized() and _is_idle()):
        end_shared_ray()
        _start(resources)
        _shared.update(resources)


def end_shared_ray():
    if _shared:
        _shared.clear()
        ray.shutdown()


def _is_idle(within_s=5):
    """Nothing holds CPUs or GPUs, though the trials of the module before may be ending still."""
    deadline = time.monotonic() + within_s
    while any(ray.available_resources().get(name) != ray.cluster_resources().get(name) for name in ("CPU", "GPU")):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _start(resources):
    """On this machine, and never one that runs already."""
    ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False, **resources)


def wait_until(holds, timeout_s=100):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.05)


@contextmanager
def local_ray(**resources):
    """A Ray of its own."""
    _start(resources)
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
def no_workers_ahead():
    """Raylets that start no processes ahead of work: to most nodes it never comes, and the machine would be busy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        patch.setenv("RAY_enable_worker_prestart", "0")
        yield


@contextmanager
def cluster_of(*nodes):
    """A cluster with one raylet for each dict of ``add_node`` arguments."""
    cluster = Cluster()
    try:
        with no_workers_ahead():
            for node in nodes:
                cluster.add_node(**node)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def run_where_this_package_is_not(function, module, code, folder):
    """Run ``code`` in a process that has Ray, not this package, and ``function``, sent by value, as ``task``."""
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
    # Without `site` an editable install is not found, but what lies in site-packages is.
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
