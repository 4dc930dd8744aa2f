import ast
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
import ray.cloudpickle
import ray.exceptions
from ray import tune
from ray._private import services
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.util import placement_group

from tests.on_ray.rays import cluster_of, ray_with_stand_ins, run_without_this_package
from tune_policies import (
    CpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    PolicyCallback,
    PolicyScheduler,
    ProbeError,
    ProbeWarning,
    Resources,
    applied,
    probe_cluster,
    run,
    tuner,
)
from tune_policies.probe import node_facts
from tune_policies.probe.doctor.cluster_reader import examine
from tune_policies.ray_compat import gcs as cluster_state
from tune_policies.ray_compat.connection import connect_if_running, find_ray, last_error


@pytest.fixture
def no_ray_address_file(monkeypatch):
    """Make Ray use an empty temporary folder. The path is short because Ray creates sockets in this folder."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield


@pytest.mark.usefixtures("no_ray_address_file")
def test_probe_starts_and_stops_ray_if_no_cluster_is_running():
    capacity = probe_cluster()

    assert len(capacity.nodes) == 1
    assert capacity.nodes[0].resources.cpus == len(os.sched_getaffinity(0))
    assert capacity.read_at is not None
    assert not ray.is_initialized()


@pytest.mark.rest
def test_probe_uses_the_existing_connection_and_keeps_it(monkeypatch, tmp_path):
    """The probe warns once if GPU memory cannot be read. For another address, or if Ray fails, it raises an error."""

    def gone(*_):
        raise ray.exceptions.RaySystemError("connection lost")

    with ray_with_stand_ins(
        tmp_path, num_cpus=3, num_gpus=64, resources={"accelerator_type:A100": 1, "TPU": 4}
    ):  # the stand-in for NVIDIA's driver fails
        with pytest.warns(
            ProbeWarning,
            match="GPU memory was not read, so plans assume the smallest amount known for the type: .*Driver Not Load",
        ):
            (node,) = probe_cluster().nodes
        probe_cluster()  # pytest would raise a second warning as an error
        with pytest.raises(ProbeError, match="already connected to a Ray"):
            probe_cluster("127.0.0.1:6379")
        # The error is simulated, because a real crash of Ray would end the whole program after a minute.
        monkeypatch.setattr(cluster_state, "fetch", gone)
        with pytest.raises(ProbeError, match=r"could not read the cluster from Ray: .*connection lost"):
            probe_cluster()
        assert ray.is_initialized()

    assert (node.resources.cpus, node.resources.custom, node.accelerator_type) == (3, {"TPU": 4}, "A100")
    assert (node.resources.gpus, node.devices) == (64, None)
    assert node.resources.memory_bytes > 2**20


@pytest.mark.rest
def test_a_warning_names_a_node_that_does_not_respond_in_time():
    with cluster_of({"num_cpus": 1}, {"num_cpus": 2, "num_gpus": 1}) as cluster:
        (silent,) = cluster.worker_nodes
        raylet = silent.all_processes["raylet"][0].process
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        raylet.send_signal(signal.SIGSTOP)
        try:
            with pytest.warns(
                ProbeWarning, match=rf"GPU memory was not read: node {silent.node_id[:8]}: no answer in time"
            ):
                found = {node.node_id: node for node in probe_cluster(timeout_s=5).nodes}
        finally:
            raylet.send_signal(signal.SIGCONT)

    unread = found.pop(silent.node_id)
    assert (unread.resources.gpus, unread.devices, unread.usable_cpus) == (1, None, None)
    assert [node.usable_cpus for node in found.values()] != [None]


@pytest.mark.rest
def test_the_capacity_states_whether_the_program_started_ray():
    """Then, the advice to change the number of CPUs names the option of ``ray.init`` instead of ``ray start``."""
    with cluster_of({"num_cpus": 1}) as cluster:
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        joined = probe_cluster().is_started_here
        ray.shutdown()
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        started = probe_cluster().is_started_here
    finally:
        ray.shutdown()

    assert (joined, started) == (False, True)


def drain(node, reason="DRAIN_NODE_REASON_PREEMPTION"):
    """Drain a node like `ray drain-node`, so that Ray places no new work on it."""
    gcs = GcsClient(address=ray.get_runtime_context().gcs_address)
    deadline_ms = int(time.time() * 1000) + 60_000
    accepted, why = gcs.drain_node(node.node_id, DrainNodeReason.Value(reason), "a test", deadline_ms)
    assert accepted, why


@pytest.mark.rest
# At first, the GCS still reports the drained node as schedulable, but rejects tasks on it.
@pytest.mark.filterwarnings("ignore:CPU limits of unread nodes")
@pytest.mark.ray_border
def test_draining_nodes_are_listed_separately_and_reserved_resources_count_as_in_use():
    with cluster_of({"num_cpus": 2}, {"num_cpus": 3, "resources": {"old": 1}}, {"num_cpus": 4}) as cluster:
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        # A draining node stays alive while its resources are in use.
        group = placement_group([{"CPU": 0.5, "old": 1}])
        ray.get([group.ready(), placement_group([{"CPU": 4}]).ready()], timeout=60)
        drain(next(node for node in cluster.worker_nodes if node._ray_params.num_cpus == 3))

        capacity = eventually(probe_cluster, lambda found: found.draining and any(n.in_use.cpus for n in found.nodes))

    head, other = sorted(capacity.nodes, key=lambda node: node.resources.cpus)
    (drained,) = capacity.draining
    assert (head.is_head, head.in_use) == (True, Resources())
    assert (other.is_head, other.resources.cpus, other.in_use) == (False, 4, Resources(cpus=4))
    assert (drained.resources.custom, drained.in_use) == ({"old": 1}, Resources(cpus=0.5, custom={"old": 1}))
    assert head.address == ray.util.get_node_ip_address()


def port_answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def eventually(read, true):
    """Read until the condition is true or 20 s have passed, because nodes report to the GCS with a delay."""
    deadline = time.monotonic() + 20
    while not true(found := read()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def wait_for_runtime_environments(cluster):
    """Wait for the runtime environment agent, because the Ray Client server waits for it for only 15 s."""
    ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
    ray.get(ray.remote(runtime_env={"env_vars": {"A": "1"}})(lambda: 1).remote(), timeout=100)
    ray.shutdown()


@pytest.fixture
def ray_client(monkeypatch):
    """Connect through Ray Client to a cluster with two CPUs."""
    # The Ray Client server imports all of Ray. On a busy machine, this takes longer than Ray's timeout of 30 s.
    monkeypatch.setenv("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "150")
    # Ray forks the server process while threads of gRPC run. With gRPC's fork handlers, the process often crashes.
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with cluster_of({"num_cpus": 2, "ray_client_server_port": port}) as cluster:
        eventually(lambda: port_answers(port), bool)
        wait_for_runtime_environments(cluster)
        # Connect only once, because each connection starts a server process, and Ray may hang if it starts several.
        ray.init(f"ray://127.0.0.1:{port}", logging_level="ERROR", log_to_driver=False)
        yield


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore:unclosed file .*ray_client_server:ResourceWarning")  # Ray raises this warning
@pytest.mark.ray_border
def test_a_cluster_is_probed_through_ray_client(ray_client):
    (node,) = probe_cluster(timeout_s=60).nodes

    assert (node.resources.cpus, node.is_head, node.in_use) == (2, True, Resources())
    assert node.usable_cpus == len(os.sched_getaffinity(0))
    assert node.cpu_model == node_facts.read_cpu_model()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:unclosed file .*ray_client_server:ResourceWarning")  # Ray raises this warning
def test_ray_client_works_with_all_entry_points_except_applied(ray_client, tmp_path):
    def train(config):
        tune.report({"loss": 1})

    policy, options = CpuPolicy(cpus=2), {"storage_path": str(tmp_path), "verbose": 0}
    by_run = run(train, policy, callbacks=[PolicyCallback()], **options).trials
    by_tune_run = tune.run(train, scheduler=PolicyScheduler(policy), **options).trials
    by_tuner = tuner(train, policy, run_config=tune.RunConfig(**options)).fit()

    slots = [trial.last_result["slot"] for trial in by_run + by_tune_run] + [by_tuner[0].metrics["slot"]]
    assert slots == ["2 CPUs"] * 3
    refused = pytest.raises(InvalidResourcesError, match=r"applied does not affect .* Pass scheduler=PolicyScheduler")
    with refused, applied(policy):
        pytest.fail("the block was entered")


@contextmanager
def errors_of_the_cluster():
    """Push errors to every driver while the block runs."""
    done = threading.Event()

    def push():
        worker = ray._private.worker.global_worker.core_worker
        while not done.wait(0.1):
            worker.push_error(ray.JobID.nil(), "test", "an error of another program", time.time())

    pushing = threading.Thread(target=push)
    pushing.start()
    try:
        yield
    finally:
        done.set()
        pushing.join()


@pytest.fixture
def silent_port():
    """A port that accepts connections and never responds."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return closed.getsockname()[1]


def test_a_closed_port_raises_an_error_immediately(closed_port):
    with pytest.raises(ProbeError, match=r"no Ray cluster responds at '127.0.0.1:\d+' \(.*refused\)\. Start Ray there"):
        probe_cluster(f"127.0.0.1:{closed_port}")


def report(config):
    tune.report({"loss": 1})


def run_in_block():
    with applied(CpuPolicy(cpus=1)):
        tune.run(report)


@pytest.mark.parametrize(
    "start",
    [lambda: run(report, CpuPolicy(cpus=1)), lambda: tuner(report, CpuPolicy(cpus=1)).fit(), run_in_block],
    ids=["run", "tuner", "applied"],
)
def test_a_run_raises_an_error_immediately_if_the_cluster_in_ray_address_is_gone(start, closed_port, monkeypatch):
    """Tune itself would wait for minutes."""
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")

    with pytest.raises(ProbeError, match=f"no Ray cluster responds at '127.0.0.1:{closed_port}'"):
        start()


@pytest.mark.usefixtures("no_ray_address_file")
def test_a_run_without_an_address_leaves_the_start_of_ray_to_tune():
    connect_if_running()

    assert not ray.is_initialized()


def test_a_port_that_never_responds_raises_an_error_at_the_timeout(silent_port):
    """Ray itself would retry for minutes and then end the process."""
    with pytest.raises(ProbeError, match=r"within 2 s\. Wait longer \(--timeout-s.*\), start Ray there"):
        probe_cluster(f"127.0.0.1:{silent_port}", timeout_s=2)


@pytest.mark.ray_border
def test_the_saved_address_of_a_dead_cluster_raises_an_error_immediately(closed_port, tmp_path, monkeypatch):
    """`ray start` saves the address in a file, and Ray uses this address if no other address is given."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{closed_port}")

    with pytest.raises(
        ProbeError, match=rf"no Ray cluster responds at '127.0.0.1:{closed_port}' .* to ray_current_cluster"
    ):
        probe_cluster()


def test_an_error_while_ray_starts_is_raised_as_a_probe_error(monkeypatch):
    """The error is simulated, because Ray would raise it only after half a minute."""

    def time_out(**_):
        raise Exception("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", time_out)

    with pytest.raises(ProbeError, match="could not connect to Ray or start Ray: The current node timed out"):
        probe_cluster("local")


@pytest.mark.rest
def test_an_empty_address_is_a_usage_error():
    arguments = [sys.executable, "-m", "tune_policies", "probe", "--address", ""]

    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the Ray address is empty")


def test_the_error_explains_what_local_does_in_each_function(closed_port):
    address = f"127.0.0.1:{closed_port}"
    with pytest.raises(ProbeError, match="'local' starts a temporary Ray instance"):
        probe_cluster(address)

    with pytest.raises(ProbeError, match="'local' examines only this machine"):
        examine(address)


def test_a_multi_line_error_of_ray_is_reported_completely():
    stderr = (
        b"Traceback (most recent call last):\n  File x\nRuntimeError: Version mismatch: the cluster has\n    Ray: 2.1\n"
    )

    assert last_error(stderr) == "RuntimeError: Version mismatch: the cluster has Ray: 2.1"


@pytest.mark.parametrize(
    "address", ["cluster", "host:", ":6379", "host:port", "a..b:6379", "a\0b:1", "host:²", "h:99999999"]
)
def test_an_invalid_address_is_rejected(address):
    with pytest.raises(InvalidResourcesError, match="is not host:port, ray://host:port, 'auto' or 'local'"):
        probe_cluster(address)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_the_timeout_must_be_above_zero(timeout_s):
    with pytest.raises(InvalidResourcesError, match="timeout_s must be above 0 seconds"):
        probe_cluster(timeout_s=timeout_s)


def test_a_node_without_this_package_is_read(tmp_path):
    """The task is pickled by value, so it does not need this package."""
    code = "print(task(with_gpus=True, session='none'))"

    facts = ast.literal_eval(run_without_this_package(node_facts.read_node, node_facts, code, tmp_path))

    assert facts["usable_cpus"] >= 1
    assert facts["gpus"] or "NVML" in facts["gpu_error"]


HOSTILE = "a[bold]b[/red]\x1b[31m\n::add-mask::c\u202e"


@pytest.mark.rest
@pytest.mark.parametrize("command", ["probe", "doctor"])
@pytest.mark.ray_border
def test_modules_in_the_working_folder_are_not_imported_and_names_are_escaped(
    tmp_path, isolated_environment, hostile_cluster, command
):
    """By default, Ray adds the working folder, with its numpy.py, to the import path of the workers."""
    for name in ("random", "json", "numpy", "pydantic", "pynvml"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / name)!r} + '-ran', 'w')\nraise ImportError\n")
    program = [sys.executable, "-P", "-m", "tune_policies", command, "--address", hostile_cluster.address]

    done = subprocess.run(
        program, cwd=tmp_path, env=isolated_environment, capture_output=True, text=True, check=False, timeout=120
    )

    assert list(tmp_path.glob("*-ran")) == []
    assert done.returncode == (0 if command == "probe" else 1), done.stderr
    assert [each for each in done.stdout + done.stderr if each != "\n" and not each.isprintable()] == []
    assert not any(line.strip().startswith("::") for line in done.stdout.splitlines())
    if command == "probe":
        assert "a[bold]b[/red]\\u001b[31m\\n::add-mask::c\\u202e" in "".join(map(str.strip, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def hostile_cluster():
    with cluster_of({"num_cpus": 2, "num_gpus": 1, "resources": {HOSTILE: 1}}) as cluster:
        yield cluster


@pytest.mark.rest
@pytest.mark.ray_border
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")  # the memory of a simulated GPU cannot be read
def test_a_cluster_is_found_by_its_address_and_by_the_environment(hostile_cluster, monkeypatch):
    """The probe disconnects from the cluster before it returns."""
    by_address = probe_cluster(hostile_cluster.address)
    monkeypatch.setenv("RAY_ADDRESS", hostile_cluster.address)
    by_environment = probe_cluster()

    assert not ray.is_initialized()
    assert [each.nodes[0].resources.cpus for each in (by_address, by_environment)] == [2, 2]


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")  # the memory of a simulated GPU cannot be read
def test_threads_without_a_connection_share_one_and_close_it(hostile_cluster):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(probe_cluster(hostile_cluster.address).nodes[0].resources.cpus))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (found, ray.is_initialized()) == ([2] * 4, False)


HIDES_PACKAGE = """
import sys

class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tune_policies", "trainers", "benchmarks"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hider())
"""


@contextmanager
def without_this_package(folder):
    """Start nodes in this block whose Python processes cannot import this package."""
    (folder / "sitecustomize.py").write_text(HIDES_PACKAGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


@pytest.mark.rest
def test_a_run_does_not_use_a_node_without_this_package(tmp_path):
    def where(config):
        tune.report({"node": ray.get_runtime_context().get_node_id()})

    with cluster_of({"num_cpus": 1}) as cluster:
        with without_this_package(tmp_path):
            lacking = cluster.add_node(num_cpus=2)
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        with pytest.warns(
            ProbeWarning, match=r"plans ignore 1 node \(.*\): tune-policies is not installed. Install it"
        ):
            trials = run(where, CpuPolicy(cpus=1), num_samples=3, storage_path=str(tmp_path), verbose=0).trials

    assert [trial.status for trial in trials] == ["TERMINATED"] * 3
    assert lacking.node_id not in {trial.last_result["node"] for trial in trials}


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")  # the run raises an error
def test_a_run_is_refused_if_no_node_has_this_package(tmp_path):
    with without_this_package(tmp_path), cluster_of({"num_cpus": 1}) as cluster:
        ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
        with pytest.raises(InfeasibleRequestError) as error:
            run(report, CpuPolicy(cpus=1), storage_path=str(tmp_path), verbose=0)

    assert "but 1 node" in str(error.value)
    assert 'runtime_env={"py_modules": [tune_policies]}' in str(error.value)


@pytest.mark.rest
def test_the_runtime_environment_of_the_program_can_bring_this_package(tmp_path):
    with without_this_package(tmp_path), cluster_of({"num_cpus": 1}) as cluster:
        environment = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[3])}}
        ray.init(cluster.address, runtime_env=environment, logging_level="ERROR", log_to_driver=False)
        capacity = probe_cluster(timeout_s=100)

    assert (len(capacity.nodes), capacity.unusable) == (1, ())


@pytest.mark.rest
@pytest.mark.usefixtures("hostile_cluster", "no_ray_address_file")
def test_a_cluster_without_an_address_file_is_found_only_with_auto():
    assert find_ray("auto") in services.find_gcs_addresses()
    assert find_ray(None) is None


@pytest.mark.rest
def test_errors_of_the_cluster_are_not_printed_to_stdout(hostile_cluster):
    ray.init(hostile_cluster.address, logging_level="ERROR", log_to_driver=False)
    program, options = [sys.executable, "-m", "tune_policies"], ["--json", "--address", hostile_cluster.address]
    with errors_of_the_cluster():
        all_done = [
            subprocess.run([*program, command, *options], capture_output=True, text=True, check=False, timeout=120)
            for command in ("probe", "doctor")
        ]
    ray.shutdown()

    assert all("an error of another program" in done.stderr for done in all_done)
    assert [len(json.loads(done.stdout)["nodes"]) for done in all_done] == [1, 1]


@pytest.mark.rest
def test_a_gcs_that_stops_responding_raises_an_error_at_the_timeout(hostile_cluster):
    gcs = hostile_cluster.head_node.all_processes["gcs_server"][0].process
    ray.init(hostile_cluster.address, logging_level="ERROR", log_to_driver=False)
    gcs.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(ProbeError, match="could not read the cluster from Ray"):
            probe_cluster(timeout_s=2)
    finally:
        gcs.send_signal(signal.SIGCONT)
        ray.shutdown()
