"""The resources that a program itself holds outside its runs are not available to its runs."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
import ray
from ray import tune
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tests.rest_parameters import further
from tune_policies import FreeCapacityPolicy, GpuPolicy, Resources, probe_cluster, run
from tune_policies.probe.reservation_holders import nested_run_error
from tune_policies.ray_compat.gcs import programs, read_cluster_state, read_records
from tune_policies.ray_compat.this_process import this_process

RAY = {"num_cpus": 4, "num_gpus": 2}

# The GPUs are simulated, so their memory cannot be read.
pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")]

OUTER = "the trial, task or actor in which this program runs"
ENTRYPOINT = "the entrypoint of this Ray job"


def read_program():
    """Return the resources of the node, and what the program holds of it, by holder."""
    (node,) = read_cluster_state(30).nodes
    held = {holder: (each.cpus, each.gpus) for holder, each in node.held.items()}
    return (node.resources.cpus, node.resources.gpus), held


CHILD = """
import json, ray
from tests.on_ray.runner.test_own_reservations import read_program
ray.init(logging_level="ERROR", log_to_driver=False)
print("answer:", json.dumps(read_program()))
"""


@ray.remote(num_cpus=1, num_gpus=1)
class Outer:
    def read(self):
        return read_program()

    def read_in_child(self):
        """Read in a program that this actor starts, as Ray's supervisor of a job starts the entrypoint."""
        environment = {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
        done = subprocess.run(
            [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        (answer,) = (line for line in done.stdout.splitlines() if line.startswith("answer:"))
        (cpus, gpus), held = json.loads(answer.removeprefix("answer:"))
        return (cpus, gpus), {holder: tuple(each) for holder, each in held.items()}

    def read_in_own_actor(self):
        inner = ray.remote(num_cpus=0)(Outer.__ray_metadata__.modified_class).remote()
        return ray.get(inner.read.remote())


@pytest.fixture
def outer():
    started = []

    def start(**options):
        started.append(Outer.options(**options).remote())
        return started[0]

    yield start
    for actor in started:
        ray.kill(actor)


@pytest.mark.parametrize("where", ["read", *further("read_in_child", "read_in_own_actor")])
def test_the_resources_of_the_actor_in_which_a_program_runs_are_not_available_to_it(outer, where):
    found = ray.get(getattr(outer(), where).remote(), timeout=100)

    assert found == ((3, 1), {OUTER: (1, 1)})


def test_the_entrypoint_resources_of_a_ray_job_are_not_available_to_it(outer):
    """Ray runs the entrypoint in a detached actor with this name."""
    supervisor = outer(name="_ray_internal_job_actor_raysubmit_1", lifetime="detached", num_cpus=0, num_gpus=1)

    found = ray.get(supervisor.read_in_child.remote(), timeout=100)

    assert found == ((4, 1), {ENTRYPOINT: (0, 1)})


@pytest.mark.rest
def test_all_bundles_of_the_placement_group_in_which_a_program_runs_are_not_available_to_it(outer):
    group = ray.util.placement_group([{"CPU": 1, "GPU": 1}, {"CPU": 2}])
    inside = outer(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0))

    found = ray.get(inside.read.remote(), timeout=100)
    ray.util.remove_placement_group(group)

    assert found == ((1, 1), {OUTER: (3, 1)})


@pytest.mark.rest
def test_a_fraction_of_a_gpu_that_a_program_holds_makes_the_whole_gpu_unavailable(outer):
    found = ray.get(outer(num_gpus=0.5).read.remote(), timeout=100)

    assert found == ((3, 1), {OUTER: (1, 0.5)})


@pytest.mark.rest
def test_the_cpus_of_a_task_remain_available_to_a_program_in_it():
    """Ray releases the CPUs of a task while the task waits, for example for a trial."""
    found = ray.get(ray.remote(num_cpus=1, num_gpus=1)(read_program).remote(), timeout=100)

    assert found == ((4, 1), {OUTER: (0, 1)})


def test_the_actors_of_other_programs_remain_part_of_the_capacity(outer):
    ray.get(outer().read.remote(), timeout=100)

    assert read_program() == ((4, 2), {})


def report(config):
    tune.report({"loss": 1})


def test_the_resources_of_a_run_that_has_just_ended_count_as_free(tmp_path):
    """Ray returns the bundles of a removed placement group with a delay."""
    run(report, GpuPolicy(cpus=1), num_samples=2, storage_path=str(tmp_path), verbose=0)

    plan = FreeCapacityPolicy(GpuPolicy(cpus=1)).plan(probe_cluster())

    assert plan.max_concurrent_trials == 2


@pytest.mark.rest
def test_only_removed_placement_groups_count_as_free():
    found = []
    for _ in range(5):
        groups = [ray.util.placement_group([{"CPU": 1, "GPU": 1}]) for _ in range(2)]
        ray.get([group.ready() for group in groups], timeout=60)
        while read_cluster_state(30).nodes[0].in_use.gpus < 2:
            time.sleep(0.02)  # Ray reports the use with a delay
        ray.util.remove_placement_group(groups[0])
        found.append(read_cluster_state(30).nodes[0].in_use)
        ray.util.remove_placement_group(groups[1])

    assert found == [Resources(cpus=1, gpus=1)] * 5


def test_threads_can_probe_at_the_same_time():
    errors = []

    def probe():
        for _ in range(6):
            try:
                probe_cluster()
            except Exception as error:  # noqa: BLE001  # any error of Ray
                errors.append(error)

    threads = [threading.Thread(target=probe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []


TITLED = """
import ray
ray._raylet.setproctitle("ray::Title")
ray.init(logging_level="ERROR", log_to_driver=False)
input()
"""


def test_the_title_of_a_process_ends_before_its_empty_arguments(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    program = [sys.executable, "-c", TITLED, *["a long argument"] * 20]
    child = subprocess.Popen(program, stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (names := [name for name in programs().values() if f"(pid {child.pid})" in name]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    child.communicate(b"\n", timeout=60)

    assert names == [f"ray::Title (pid {child.pid})"]


ALL_WAIT = (
    "4 outer trials, each waiting for a run inside it, reserve 4 CPUs. Reserve resources for the inner runs: use "
    "ReservingPolicy(policy, cpus=1) in the outer run, or pass a smaller max_concurrent_trials to it."
)
ONE_WAITS = (
    "the trial in which this run runs reserves 4 CPUs, and the rest is not enough. Reserve fewer resources for the "
    "outer trial, request less in the inner run, or add nodes."
)


@pytest.mark.parametrize(
    ("num_outer", "cpus", "message"),
    [(4, 1, ALL_WAIT), (1, 4, ONE_WAITS)],
    ids=["all outer trials together", "the outer trial alone"],
)
def test_an_inner_run_that_its_outer_trials_block_gets_an_error(num_outer, cpus, message):
    found = errors_of_inner_runs(num_outer, cpus, timeout_s=60)

    assert found == [message] * num_outer


@pytest.mark.rest
def test_an_inner_run_for_which_the_outer_trials_leave_a_cpu_gets_no_error():
    found = errors_of_inner_runs(3, 1, timeout_s=3)

    assert found == [None] * 3


@ray.remote
class OuterTrial:
    """Stands for a trial whose function starts an inner run: it requests a placement group, and waits for it."""

    def error(self, timeout_s):
        """Return the error of the inner run, or ``None`` if there is none within ``timeout_s`` seconds."""
        self.group = ray.util.placement_group([{"CPU": 1}])
        group_ids = [self.group.id.hex()]
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            error = nested_run_error(this_process(), read_records(), group_ids, group_ids)
            if error is not None:
                return f"{error.offered}. {error.suggestion}"
            time.sleep(0.2)
        return None

    def end(self):
        ray.util.remove_placement_group(self.group)


def errors_of_inner_runs(number, cpus, timeout_s):
    """Run outer trials in placement groups of their own, as Tune does, and return the errors of their inner runs."""
    groups = [ray.util.placement_group([{"CPU": cpus}]) for _ in range(number)]
    ray.get([group.ready() for group in groups], timeout=60)
    trials = [
        OuterTrial.options(num_cpus=cpus, scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0)).remote()
        for group in groups
    ]
    try:
        return ray.get([trial.error.remote(timeout_s) for trial in trials], timeout=150)
    finally:
        ray.get([trial.end.remote() for trial in trials])
        for group in groups:
            ray.util.remove_placement_group(group)
