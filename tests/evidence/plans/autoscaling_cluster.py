"""A real autoscaler on one machine.

``ray.cluster_utils.AutoscalingCluster`` needs a file that Ray's wheel does not hold, so the head is started by its
command, as a user would.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import ray

from tune_policies.files.child_python import child_python

from ..guard import end_processes
from .launching import LAUNCHED

_ROOT: Final = Path(__file__).parents[3]
_HEAD_ID: Final = "f" * 51 + "00000"  # by which Ray's fake provider knows its head
_HEAD_TYPE: Final = "ray.head.default"
_START_S: Final = 60.0
_END_S: Final = 20.0


class AutoscalingCluster(NamedTuple):
    """A running cluster.

    Attributes:
        address: Where ``ray.init`` finds it.
        modes: The folder that says how launches go; see :class:`tests.evidence.plans.launching.LaunchingProvider`.
    """

    address: str
    modes: Path

    def launches(self, **modes: str) -> None:
        """Let the launches of each type of node from now on ``start``, come with ``less``, ``fail`` or ``hang``."""
        for name, mode in modes.items():
            # In one step, as the autoscaler may be reading.
            (self.modes / f".{name}").write_text(mode)
            (self.modes / f".{name}").replace(self.modes / name)

    def end_launches(self) -> None:
        """Let the launches that hang fail: each holds one of the two threads in which the autoscaler launches."""
        self.launches(**{file.name: "fail" for file in self.modes.iterdir() if file.read_text() == "hang"})

    def launched_at(self, name: str) -> float:
        """Return when the last launch of a node of this type began, in seconds since the epoch."""
        return (self.modes / f"{name}{LAUNCHED}").stat().st_mtime


def node_type(max_workers: int = 1, **resources: float) -> dict[str, Any]:
    """Return a type of node as a cluster's configuration describes it; ``resources`` by Ray's names."""
    return {"resources": resources, "labels": {}, "node_config": {}, "min_workers": 0, "max_workers": max_workers}


@contextlib.contextmanager
def autoscaling_cluster(
    node_types: Mapping[str, dict[str, Any]],
    *,
    v2: bool,
    cpus: int = 1,
    max_workers: int | None = None,
    idle_timeout_minutes: float = 5,
) -> Iterator[AutoscalingCluster]:
    """Run a cluster of one head node with an autoscaler that can add ``node_types``; end it, and disconnect from it.

    Args:
        node_types: The types by name, each as :func:`node_type` makes it.
        v2: Whether it is autoscaler v2.
        cpus: CPUs of the head node.
        max_workers: The most nodes of all types together; ``None``: as many as of each.
        idle_timeout_minutes: After this, a node that nobody uses or asks for is taken away.
    """
    # Short, as Ray puts sockets there.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, port = Path(name), _free_port()
        cluster = AutoscalingCluster(f"127.0.0.1:{port}", folder / "modes")
        cluster.modes.mkdir()
        config = folder / "cluster.json"
        most = sum(each["max_workers"] for each in node_types.values()) if max_workers is None else max_workers
        limits = {"max_workers": most, "idle_timeout_minutes": idle_timeout_minutes}
        config.write_text(json.dumps(_config(cluster, node_types, cpus) | limits))
        command = child_python("-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}")
        command += [f"--num-cpus={cpus}", "--num-gpus=0", "--include-dashboard=false", f"--autoscaling-config={config}"]
        log = folder / "head.log"
        with log.open("wb") as output:
            environment = _environment(folder, v2=v2)
            head = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            _wait_until_started(head, log)
            yield cluster
        finally:
            ray.shutdown()
            _end(head, folder)


def _config(cluster: AutoscalingCluster, node_types: Mapping[str, dict[str, Any]], cpus: int) -> dict[str, Any]:
    commands = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    return {
        "cluster_name": "fake",
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": "tests.evidence.plans.launching.LaunchingProvider",
            "head_node_id": _HEAD_ID,
            "gcs_address": cluster.address,
            "launch_multiple": True,
            # All nodes share the machine's address, and have Ray already.
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "modes": str(cluster.modes),
        },
        "available_node_types": {_HEAD_TYPE: node_type(0, CPU=cpus), **node_types},
        "head_node_type": _HEAD_TYPE,
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
        **{f"{each}_commands": [] for each in commands},
    }


def _environment(folder: Path, *, v2: bool) -> dict[str, str]:
    environment = {
        **os.environ,
        "RAY_TMPDIR": str(folder),
        "RAY_FAKE_CLUSTER": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_autoscaler_v2": "1" if v2 else "0",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID,
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        # Where the autoscaler finds the provider.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
    }
    return environment | ({"RAY_CLOUD_INSTANCE_ID": _HEAD_ID} if v2 else {})


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _wait_until_started(head: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while "Ray runtime started" not in (said := log.read_text(errors="replace")):
        if head.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the head node did not start within {_START_S:g} s: {said}")
        time.sleep(0.05)


def _end(head: "subprocess.Popen[bytes]", folder: Path) -> None:
    """End the head, and the nodes that its autoscaler started, which outlive it."""
    head.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        head.wait(_END_S)
    end_processes("RAY_TMPDIR", str(folder))
    head.wait()
