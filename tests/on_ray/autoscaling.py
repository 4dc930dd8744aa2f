"""A real Ray autoscaler on one machine: its nodes are raylets with logical resources, which it starts itself."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

HEAD_TYPE = "ray.head.default"  # the provider's name for it
# The provider names its nodes f…f00001 and so on, after the head.
HEAD_NODE_ID = "f" * 51 + "00000"
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
EMPTY = ("auth", "docker", "file_mounts")
NO_COMMANDS = ("cluster_synced_files", "initialization_commands", "setup_commands", "head_setup_commands")
NO_COMMANDS += ("worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")


@contextmanager
def autoscaling_cluster(node_types, *, v2, max_workers=8):
    """Yield the address of a head with 1 CPU, to which autoscaler v1 or ``v2`` adds nodes of ``node_types``.

    A node type is ``{"resources": {…}, "max_workers": n}``, with ``labels`` if need be.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    # Short, as Ray puts sockets there.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "autoscaling.yaml"
        file.write_text(yaml.safe_dump(_config(node_types, max_workers, address)))
        environment = {**os.environ, "RAY_TMPDIR": folder, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
        if v2:
            environment |= {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD_NODE_ID}
            environment |= {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_NODE_ID}
        command = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            f"--port={address.partition(':')[2]}",
        ]
        command += ["--num-cpus=1", "--num-gpus=0", "--include-dashboard=false", f"--autoscaling-config={file}"]
        with (Path(folder) / "output").open("w+b") as output:
            head = subprocess.Popen(
                [*command, "--block"], env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                _wait_until_ready(head, output)
                yield address
            finally:
                head.terminate()
                with suppress(subprocess.TimeoutExpired):
                    head.wait(timeout=30)
                with suppress(ProcessLookupError):
                    os.killpg(head.pid, signal.SIGKILL)
                head.wait()


def _config(node_types, max_workers, address):
    head = {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0}
    types = {name: {"node_config": {}, "min_workers": 0, **of} for name, of in node_types.items()}
    return {
        "cluster_name": "autoscaling",
        "max_workers": max_workers,
        "idle_timeout_minutes": 10,
        "upscaling_speed": 1.0,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "head_node_id": HEAD_NODE_ID,
            "gcs_address": address,
            "launch_multiple": True,
        },
        "available_node_types": {HEAD_TYPE: head, **types},
        "head_node_type": HEAD_TYPE,
        "file_mounts_sync_continuously": False,
        **{key: {} for key in EMPTY},
        **{key: [] for key in NO_COMMANDS},
    }


def _wait_until_ready(head, output):
    deadline = time.monotonic() + 60
    while b"Ray runtime started" not in (said := Path(output.name).read_bytes()):
        if head.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the autoscaling head did not start: {said.decode(errors='replace')}")
        time.sleep(0.1)
