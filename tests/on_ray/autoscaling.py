"""A cluster with Ray's real autoscaler on one machine.

``ray.cluster_utils.AutoscalingCluster`` needs a file that Ray's wheel does not contain, so the tests start the head
node with ``ray start``.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import ray
import yaml
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus

from tests.on_ray.marked_processes import end_processes
from tests.on_ray.rays import wait_until, without_prestarted_workers
from tune_policies.files.child_python import child_python
from tune_policies.ray_compat.autoscaler import find_autoscaler

ROOT = Path(__file__).parents[2]
HEAD_ID = "f" * 51 + "00000"  # the ID of the head node in Ray's fake provider
HEAD_TYPE = "ray.head.default"
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")


class AutoscalingCluster:
    """The address of a running cluster for ``ray.init``, and the folder of the files that control node launches."""

    def __init__(self, address, modes):
        self.address, self.modes = address, modes
        modes.mkdir()

    def launches(self, **modes):
        """Set the launch mode of each node type to ``start``, ``less``, ``fail`` or ``hang``."""
        for name, mode in modes.items():
            # Replace the file atomically, because the autoscaler may read it at the same time.
            (self.modes / f".{name}").write_text(mode)
            (self.modes / f".{name}").replace(self.modes / name)

    def end_launches(self):
        """Make hanging launches fail, because each of them blocks one of the autoscaler's two launch threads."""
        self.launches(**{file.name: "fail" for file in self.modes.iterdir() if file.read_text() == "hang"})


def node_type(max_workers=1, **resources):
    """Return the configuration of a node type. The keys of ``resources`` are Ray's resource names."""
    return {"resources": resources, "labels": {}, "node_config": {}, "min_workers": 0, "max_workers": max_workers}


@contextmanager
def autoscaling_cluster(node_types, *, v2, cpus=1, max_workers=None, idle_timeout_minutes=5):
    """Start a head node with an autoscaler that can add ``node_types``. At the end, disconnect and stop all nodes.

    Args:
        node_types: The node types by name, made by :func:`node_type`.
        v2: Whether to use autoscaler v2.
        cpus: The number of CPUs of the head node.
        max_workers: The maximum number of worker nodes of all types. Defaults to the sum of the types' maximums.
        idle_timeout_minutes: The time in minutes after which the autoscaler removes an idle node.
    """
    # The path is short because Ray creates sockets in this folder, and their paths are limited.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), _free_port()
        cluster = AutoscalingCluster(f"127.0.0.1:{port}", folder / "modes")
        most = sum(each["max_workers"] for each in node_types.values()) if max_workers is None else max_workers
        limits = {"max_workers": most, "idle_timeout_minutes": idle_timeout_minutes}
        config = folder / "cluster.json"
        config.write_text(json.dumps(_config(cluster, node_types, cpus) | limits))
        command = child_python("-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}")
        command += [f"--num-cpus={cpus}", "--num-gpus=0", "--include-dashboard=false", f"--autoscaling-config={config}"]
        log = folder / "head.log"
        with log.open("wb") as output:
            head = subprocess.Popen(command, env=_environment(folder, v2=v2), stdout=output, stderr=output)
        try:
            wait_until(lambda: "Ray runtime started" in log.read_text(errors="replace") or head.poll() is not None)
            assert head.poll() is None, log.read_text(errors="replace")
            yield cluster
        finally:
            ray.shutdown()
            head.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                head.wait(20)
            # Nodes that the autoscaler launched keep running after the head node ends.
            end_processes("RAY_TMPDIR", str(folder))
            head.wait()


def _config(cluster, node_types, cpus):
    return {
        "cluster_name": "fake",
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": "tests.on_ray.launching.LaunchingProvider",
            "head_node_id": HEAD_ID,
            "gcs_address": cluster.address,
            "launch_multiple": True,
            # All nodes share the machine's IP address, and Ray is already installed on them.
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "modes": str(cluster.modes),
        },
        "available_node_types": {HEAD_TYPE: node_type(0, CPU=cpus), **node_types},
        "head_node_type": HEAD_TYPE,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{each}_commands": [] for each in COMMANDS},
    }


def _environment(folder, *, v2):
    environment = {
        **os.environ,
        "RAY_TMPDIR": str(folder),
        "RAY_FAKE_CLUSTER": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_autoscaler_v2": "1" if v2 else "0",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        # The autoscaler imports the provider from this path.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    return environment | ({"RAY_CLOUD_INSTANCE_ID": HEAD_ID} if v2 else {})


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def cluster_of_yaml(text, *, v2):
    """Start the cluster that a cluster YAML defines, with raylets on this machine as its nodes, and connect to it."""
    config = yaml.safe_load(text)
    types = dict(config["available_node_types"])
    head = types.pop(config["head_node_type"])
    limits = {name: config[name] for name in ("max_workers", "idle_timeout_minutes")}
    with (
        without_prestarted_workers(),
        autoscaling_cluster(types, v2=v2, cpus=head["resources"]["CPU"], **limits) as cluster,
    ):
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster


def cluster_status():
    """Return the state of the cluster from Ray's GCS, including the reports of autoscaler v2."""
    reply = GetClusterStatusReply()
    reply.ParseFromString(ray._private.worker.global_worker.gcs_client.get_cluster_status(timeout_s=10))
    return reply


def alive_workers():
    """Count the alive worker nodes of each type."""
    nodes = cluster_status().cluster_resource_state.node_states
    # The head node has no type, because the autoscaler did not launch it.
    return Counter(
        node.ray_node_type_name for node in nodes if node.ray_node_type_name and node.status != NodeStatus.DEAD
    )


def workers_when(expected, timeout_s=60):
    """Wait at most ``timeout_s`` seconds for the ``expected`` numbers of worker nodes. Return the numbers by type."""
    deadline = time.monotonic() + timeout_s
    while (found := dict(alive_workers())) != expected and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def requested_nodes():
    """Return the bundles that are requested from the autoscaler, with the number of each bundle."""
    return dict(find_autoscaler().requested())
