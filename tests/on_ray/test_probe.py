import os
import socket
import subprocess
import sys
import sysconfig
import tempfile

import pytest
import ray
import ray.cloudpickle
import ray.exceptions

from tests.on_ray.rays import cluster_of, local_ray
from tune_policies import InvalidResourcesError, ProbeError, ProbeWarning, devices, probe_cluster
from tune_policies.probe import _last_error


@pytest.fixture
def no_other_ray(monkeypatch):
    """A place where no Ray has left its address; short, as Ray puts sockets there."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield


@pytest.mark.usefixtures("no_other_ray")
def test_without_a_ray_one_is_started_and_nothing_is_left_behind():
    capacity = probe_cluster()

    assert len(capacity.nodes) == 1
    assert capacity.nodes[0].resources.cpus == len(os.sched_getaffinity(0))
    assert capacity.read_at is not None
    assert not ray.is_initialized()


def test_the_ray_of_the_program_is_used_and_kept():
    with local_ray(num_cpus=3, resources={"accelerator_type:A100": 1, "TPU": 4}):
        (node,) = probe_cluster().nodes

        assert ray.is_initialized()
    assert (node.resources.cpus, node.resources.custom, node.accelerator_type) == (3, {"TPU": 4}, "A100")
    assert node.resources.memory_bytes > 2**20


def test_no_error_of_rays_own_reaches_the_user(monkeypatch):
    """Raised by hand: a Ray that dies at this moment ends the whole program after a minute, by itself."""

    def gone():
        raise ray.exceptions.RaySystemError("connection lost")

    with local_ray(num_cpus=1):
        monkeypatch.setattr(ray, "nodes", gone)
        with pytest.raises(ProbeError, match=r"Ray went away while it was read: .*connection lost"):
            probe_cluster()


def test_another_ray_than_the_programs_cannot_be_named():
    with local_ray(num_cpus=1), pytest.raises(ProbeError, match="already connected to a Ray"):
        probe_cluster("127.0.0.1:6379")


def test_a_gpu_node_without_nvml_still_counts_even_when_its_cpus_are_taken():
    @ray.remote(num_cpus=1)
    class Busy:
        def ready(self):
            return True

    # More GPUs than any machine has, so that on none there is a device behind each.
    with local_ray(num_cpus=1, num_gpus=64):
        busy = Busy.remote()
        ray.get(busy.ready.remote(), timeout=60)
        with pytest.warns(ProbeWarning, match="GPU memory is not known .* NVML"):
            (node,) = probe_cluster().nodes

    assert (node.resources.gpus, node.smallest_gpu_memory_bytes) == (64, None)


def test_a_node_that_does_not_answer_in_time_is_not_read_and_named():
    with (
        local_ray(num_cpus=1, num_gpus=1),
        pytest.warns(ProbeWarning, match=r"node [0-9a-f]{8}: no answer within 0.001 s"),
    ):
        (node,) = probe_cluster(timeout_s=0.001).nodes

    assert (node.resources.gpus, node.devices) == (1, None)


def test_a_cluster_is_probed_by_its_address_and_left_again():
    with cluster_of({"num_cpus": 2}, {"num_cpus": 3}) as cluster:
        capacity = probe_cluster(cluster.address)

        assert not ray.is_initialized()
    assert sorted(node.resources.cpus for node in capacity.nodes) == [2, 3]


def test_the_address_in_the_environment_is_used(monkeypatch):
    with cluster_of({"num_cpus": 5}) as cluster:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)

        (node,) = probe_cluster().nodes

    assert node.resources.cpus == 5


@pytest.fixture
def silent_port():
    """A port that takes connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return closed.getsockname()[1]


def test_a_port_where_nothing_listens_is_an_error_at_once(closed_port):
    with pytest.raises(ProbeError, match=r"no Ray answers at '127.0.0.1:\d+' \(.*refused\): check that Ray runs there"):
        probe_cluster(f"127.0.0.1:{closed_port}")


def test_a_port_that_never_answers_is_an_error_at_the_deadline(silent_port):
    """Ray's own client would retry for minutes, and then end the process."""
    with pytest.raises(ProbeError, match="within 2 s: check that Ray runs there"):
        probe_cluster(f"127.0.0.1:{silent_port}", timeout_s=2)


def test_the_address_of_a_cluster_that_died_is_an_error_at_once(closed_port, tmp_path, monkeypatch):
    """`ray start` leaves the address in a file, by which Ray goes where no other is named."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{closed_port}")

    with pytest.raises(ProbeError, match=rf"no Ray answers at '127.0.0.1:{closed_port}' .* in ray_current_cluster"):
        probe_cluster()


def test_the_reason_of_a_refusal_is_told_whole():
    stderr = (
        b"Traceback (most recent call last):\n  File x\nRuntimeError: Version mismatch: the cluster has\n    Ray: 2.1\n"
    )

    assert _last_error(stderr) == "RuntimeError: Version mismatch: the cluster has Ray: 2.1"


@pytest.mark.parametrize("address", ["cluster", "host:", ":6379", "host:port"])
def test_an_address_of_no_known_form_is_refused(address):
    with pytest.raises(ProbeError, match="is not host:port, ray://host:port, 'auto' or 'local'"):
        probe_cluster(address)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_deadline_must_be_above_zero(timeout_s):
    with pytest.raises(InvalidResourcesError, match="timeout_s must be above 0 seconds"):
        probe_cluster(timeout_s=timeout_s)


def test_a_node_needs_nothing_but_ray_to_be_read(tmp_path):
    """The task travels by value: a node without this package gets as far as NVML."""
    ray.cloudpickle.register_pickle_by_value(devices)
    try:
        (tmp_path / "task").write_bytes(ray.cloudpickle.dumps(devices.read_gpus))
    finally:
        ray.cloudpickle.unregister_pickle_by_value(devices)
    code = (
        "import pickle, sys, importlib.util; assert importlib.util.find_spec('tune_policies') is None\n"
        "try: print(pickle.load(open(sys.argv[1], 'rb'))())\n"
        "except Exception as error: print(type(error).__name__)"
    )
    # Without `site` an editable install is not found, but what lies in site-packages is.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, tmp_path / "task"],
        env={"PYTHONPATH": sysconfig.get_path("purelib"), "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith(("NVMLError", "[")), done.stderr
