"""A real autoscaler on one machine: it starts real raylets, whose GPUs are logical.

``ray.cluster_utils.AutoscalingCluster`` needs a file that Ray's wheel does not hold, so the head is started by its
command, as a user would, with Ray's own fake node provider or a subclass of it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import ray

HEAD_ID = "f" * 51 + "00000"
FAKE_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"


def node_type(*, max_workers=1, labels=None, **resources):
    """A type of node, as a cluster's configuration describes it."""
    return {
        "resources": resources,
        "labels": labels or {},
        "node_config": {},
        "min_workers": 0,
        "max_workers": max_workers,
    }


@contextmanager
def autoscaling_cluster(node_types, *, v2, provider=FAKE_PROVIDER, max_workers=8, idle_timeout_minutes=5, cpus=1):
    """A cluster of one head node with an autoscaler that can add ``node_types``; yields its address.

    Args:
        node_types: The types by name, each as :func:`node_type` makes it.
        v2: Whether it is autoscaler v2.
        provider: What starts the nodes, as a dotted path.
        max_workers: The most nodes of all types together.
        idle_timeout_minutes: After this an idle node is taken away.
        cpus: CPUs of the head node.
    """
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        port = _free_port()
        config = Path(folder) / "cluster.yaml"
        config.write_text(json.dumps(_config(node_types, port, provider, max_workers, idle_timeout_minutes, cpus)))
        environment = _environment(folder, v2=v2)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
        command += [f"--num-cpus={cpus}", "--num-gpus=0", f"--autoscaling-config={config}", "--include-dashboard=false"]
        log = (Path(folder) / "head.log").open("wb")
        # A session of its own: all that the head and its autoscaler start can be found and ended.
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_for(port, head, log.name)
            yield f"127.0.0.1:{port}"
        finally:
            ray.shutdown()
            _end(head, folder)
            log.close()


def _config(node_types, port, provider, max_workers, idle_timeout_minutes, cpus):
    head = node_type(max_workers=0, CPU=cpus)
    return {
        "cluster_name": "fake",
        "max_workers": max_workers,
        "idle_timeout_minutes": idle_timeout_minutes,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": provider,
            "head_node_id": HEAD_ID,
            "gcs_address": f"127.0.0.1:{port}",
            "launch_multiple": True,
        },
        "available_node_types": {"ray.head.default": head, **node_types},
        "head_node_type": "ray.head.default",
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{kind}_commands": [] for kind in ("initialization", "setup", "head_setup", "worker_setup")},
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
    }


def _environment(folder, *, v2):
    environment = {
        **os.environ,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_TMPDIR": folder,
        "RAY_enable_autoscaler_v2": "1" if v2 else "0",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    if v2:
        environment["RAY_CLOUD_INSTANCE_ID"] = HEAD_ID
    return environment


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _wait_for(port, head, log, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while "Ray runtime started" not in Path(log).read_text(errors="replace"):
        assert head.poll() is None, Path(log).read_text(errors="replace")
        assert time.monotonic() < deadline, f"no Ray at port {port}: {Path(log).read_text(errors='replace')}"
        time.sleep(0.1)


def _end(head, folder):
    """End the head and every process of its session folder: the fake nodes are raylets of their own."""
    head.send_signal(signal.SIGTERM)
    try:
        head.wait(20)
    except subprocess.TimeoutExpired:
        head.kill()
    for pid in _processes_of(folder):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    deadline = time.monotonic() + 10
    while _processes_of(folder):
        assert time.monotonic() < deadline, f"processes of {folder} are still there"
        time.sleep(0.05)


def _processes_of(folder):
    """Processes that were started with this cluster's folder as their place for files, which no other has."""
    mark = f"RAY_TMPDIR={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0") and b"Z" != _state(entry):
                    found.append(int(entry.name))
            except OSError:  # it ended, or is not ours
                continue
    return found


def _state(entry):
    return (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
