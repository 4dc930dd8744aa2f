"""Tests every function of ray_compat against Ray, so that a change in a new Ray version fails here."""

import ast
import importlib
import inspect
import logging
import pickle
import re
import time
from pathlib import Path

import pytest
import ray
import ray.train
from packaging.version import Version
from ray import tune
from ray.exceptions import RayActorError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.train.v2.api.exceptions import WorkerGroupError
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from ray.util.placement_group import placement_group

from tests.on_ray.kernel_kills import be_killed
from tests.on_ray.rays import local_ray, wait_until
from tune_policies.ray_compat import run_control, trial_actors, tune_request, tune_schedulers, tune_trial
from tune_policies.ray_compat.autoscaler import start_coordinator_here
from tune_policies.ray_compat.connection import is_through_client, sent_by_value
from tune_policies.ray_compat.gcs import (
    dead_actors,
    free_by_node,
    is_dead_actor_of,
    living_actors,
    node_of_actor,
    placement_groups,
    read_cluster_state,
    read_demand,
    remove_group,
)
from tune_policies.ray_compat.kernel_kills import note_kernel_kills, was_killed_by_kernel
from tune_policies.ray_compat.placement_groups import PlacementGroups

pytestmark = [pytest.mark.rest, pytest.mark.ray_border]


@pytest.fixture(scope="module", autouse=True)
def own_ray():
    with local_ray(num_cpus=4):
        yield


def this_node():
    return ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=1)
class Holder:
    def __init__(self):
        self.inner = None

    def start(self):
        self.inner = Holder.options(num_cpus=0.5).remote()
        return ray.get(self.inner.own_id.remote())

    def own_id(self):
        return ray.get_runtime_context().get_actor_id()

    def reserve(self):
        group = placement_group([{"CPU": 0.5}], strategy="STRICT_PACK")
        ray.get(group.ready())
        return group.id.hex()

    def wait(self):
        time.sleep(600)


# The GCS.


def test_living_actors_are_read_with_their_resources_node_and_owner():
    outer = Holder.remote()
    inner_id = ray.get(outer.start.remote())
    outer_id = ray.get(outer.own_id.remote())
    actors = {actor.actor_id: actor for actor in living_actors()}

    assert actors[outer_id].class_name == "Holder"
    assert actors[outer_id].module == __name__
    assert actors[outer_id].job_id == ray.get_runtime_context().get_job_id()
    assert actors[outer_id].node_id == node_of_actor(outer_id) == this_node()
    assert actors[outer_id].resources == {"CPU": 1}
    assert abs(actors[outer_id].started_at - time.time()) < 60
    assert (actors[outer_id].group_id, actors[outer_id].is_detached) == ("", False)
    assert actors[inner_id].owner_process_id == actors[outer_id].process_id != ""
    assert free_by_node()[this_node()]["CPU"] == 2.5
    ray.kill(outer)
    wait_until(lambda: is_dead_actor_of("Holder", outer_id))
    assert not is_dead_actor_of("Other", outer_id)
    wait_until(lambda: free_by_node()[this_node()].get("CPU") == 4)


def test_dead_actors_are_found_in_errors_of_train_workers():
    holder = Holder.remote()
    actor_id = ray.get(holder.own_id.remote())
    # ray.kill is asynchronous, so a short call could finish before the actor dies.
    call = holder.wait.remote()
    ray.kill(holder)
    with pytest.raises(RayActorError) as raised:
        ray.get(call, timeout=60)
    failures = {0: WorkerHealthCheckFailedError("rank 0", raised.value), 1: ValueError("no actor")}
    of_train = pickle.loads(pickle.dumps(WorkerGroupError("two workers failed", failures)))

    assert [*dead_actors(raised.value), *dead_actors(of_train)] == [actor_id, actor_id]


@ray.remote(num_cpus=0)
class WithKillCounter:
    def note(self):
        note_kernel_kills()

    def be_killed(self, group):
        be_killed(group)


def test_a_kill_by_the_kernel_is_detected_after_another_actor_started_on_the_node(memory_group):
    killed, other = WithKillCounter.remote(), WithKillCounter.remote()
    ray.get(killed.note.remote())
    with pytest.raises(RayActorError) as raised:
        ray.get(killed.be_killed.remote(memory_group))
    ray.get(other.note.remote())

    assert was_killed_by_kernel(raised.value)


def test_placement_groups_are_read_with_their_creator_and_can_be_removed():
    owner = Holder.remote()
    group_id = ray.get(owner.reserve.remote())
    waiting = placement_group([{"CPU": 100}])
    groups = {group.group_id: group for group in placement_groups()}

    assert groups[group_id].creator_id == ray.get(owner.own_id.remote())
    assert (groups[group_id].is_created, groups[group_id].is_pending, groups[group_id].is_removed) == (1, 0, 0)
    assert (groups[group_id].strategy, groups[group_id].is_detached) == ("STRICT_PACK", False)
    assert [(each.resources, each.node_id) for each in groups[group_id].bundles] == [({"CPU": 0.5}, this_node())]
    assert groups[waiting.id.hex()].is_pending
    assert groups[waiting.id.hex()].creator_id == ""
    remove_group(group_id)
    remove_group(waiting.id.hex())
    left = {group.group_id: group for group in placement_groups()}
    assert all(left[each].is_removed for each in (group_id, waiting.id.hex()) if each in left)
    ray.kill(owner)


def test_lost_placement_groups_are_removed_when_they_are_requested_again():
    """Ray may still reserve resources for them, for example after it has lost their node."""

    def removed(ids):
        return {group.group_id for group in placement_groups() if group.group_id in ids and group.is_removed}

    groups, granted = PlacementGroups(), tune.PlacementGroupFactory([{"CPU": 1}])
    groups.request_resources(granted)
    groups.request_resources(tune.PlacementGroupFactory([{"CPU": 400}]))
    wait_until(lambda: groups.has_resources_ready(granted))
    lost = groups.own_ids

    assert sorted(amounts["CPU"] for amounts in groups.replace_lost(lost)) == [1, 400]
    assert len(groups.own_ids) == 2
    wait_until(lambda: removed(lost) == lost)
    new = groups.own_ids
    wait_until(lambda: groups.has_resources_ready(granted))
    groups.clear()
    wait_until(lambda: removed(new) == new)


def test_the_cluster_state_contains_the_nodes_and_the_pending_demand():
    state = read_cluster_state(10)
    task = ray.remote(num_cpus=90)(lambda: None).remote()

    assert [(node.node_id, node.resources.cpus, node.is_head) for node in state.nodes] == [(this_node(), 4, True)]
    assert not state.has_autoscaler
    wait_until(lambda: {"CPU": 90} in read_demand(10).waiting)
    assert [node["CPU"] for node in read_demand(10).node_totals.values()] == [4]
    assert not read_demand(10).is_growing
    ray.cancel(task)


def test_a_driver_on_the_cluster_is_not_a_ray_client():
    assert not is_through_client()


def test_a_module_pickled_by_value_works_on_a_worker_that_cannot_import_it(tmp_path, monkeypatch):
    (tmp_path / "local_module.py").write_text("def answer():\n    return 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    import local_module

    with sent_by_value(local_module):
        sent = ray.remote(local_module.answer).remote()

    assert ray.get(sent) == 42
    with pytest.raises(Exception, match="local_module"):
        ray.get(ray.remote(num_cpus=0)(local_module.answer).remote())


FIRST_WITH_COORDINATOR = Version("2.53.0")


def test_ray_trains_coordinator_starts_on_the_node_of_the_driver():
    start_coordinator_here()

    def started():
        return [each.node_id for each in living_actors() if "Coordinator" in each.class_name and each.is_detached]

    expected = [this_node()] if Version(ray.__version__) >= FIRST_WITH_COORDINATOR else []
    wait_until(lambda: started() == expected)


# Tune.


class RecordController(FIFOScheduler):
    def __init__(self):
        super().__init__()
        self.controller = self.trial = None

    def on_trial_add(self, tune_controller_, trial):
        self.controller, self.trial = run_control.unwrapped(tune_controller_), trial
        super().on_trial_add(tune_controller_, trial)


def report_once(config):
    tune.report({"loss": 1, "block": config.get("block")})


@pytest.fixture(scope="module")
def watched(own_ray, tmp_path_factory):
    scheduler = RecordController()
    tune.run(report_once, scheduler=scheduler, storage_path=str(tmp_path_factory.mktemp("runs")), verbose=0)
    return scheduler


def private_members_used(module, names):
    """Return the private attributes that a module accesses on the objects with these variable names."""
    return sorted(
        {
            node.attr
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and ast.unparse(node.value) in names
        }
    )


def test_the_check_at_the_start_of_a_run_covers_all_used_private_members_of_tunes_controller():
    """A run checks ``MEMBERS`` at its start, so this tuple must be complete."""
    found = private_members_used(run_control, {"controller", "self._controller"})

    assert sorted(run_control.MEMBERS) == found


def test_a_run_uses_at_most_eight_private_members_of_tunes_controller_and_actor_manager():
    of_actors = private_members_used(trial_actors, {"super()", "tracked_actor_task"})

    assert of_actors == ["_actor_task_failed", "_tracked_actor"]
    assert len(run_control.MEMBERS) + 1 <= 8


def test_tunes_actor_manager_has_the_members_that_a_run_overrides():
    actors = trial_actors.RayActorManager

    assert inspect.signature(actors._actor_task_failed).parameters.keys() == {
        "self",
        "tracked_actor_task",
        "exception",
    }
    assert {"add_actor", "remove_actor", "schedule_actor_task", "next", "is_actor_started"} <= vars(actors).keys()
    assert "_tracked_actor" in inspect.getsource(trial_actors.RayActorManager._actor_task_failed)


PUBLIC_MEMBERS = ("checkpoint", "get_trials", "pause_trial", "resumed", "scheduler_alg", "search_alg")


@pytest.mark.parametrize("name", [*run_control.MEMBERS, *PUBLIC_MEMBERS])
def test_tunes_controller_has_the_members_that_this_package_uses(watched, name):
    """The test also checks public members, because Ray does not document them either."""
    assert hasattr(watched.controller, name)


def test_tunes_trial_has_the_members_that_a_run_uses(watched):
    """Tune saves no temporary state of a trial, counts failures in its metadata, and compares them afterwards."""
    assert type(watched.trial.temporary_state).__name__ == "_TemporaryTrialState"
    assert {"ray_actor", "restoring_from"} <= vars(watched.trial.temporary_state).keys()
    assert {"last_result", "metric_analysis", "metric_n_steps", "num_failures"} <= vars(
        watched.trial.run_metadata
    ).keys()
    assert hasattr(watched.trial.run_metadata, "invalidate_cache")
    assert "num_failures <= self.max_failures" in inspect.getsource(type(watched.trial).should_recover)


def test_a_resource_request_keeps_its_label_selectors_when_its_bundles_change():
    asked = tune.PlacementGroupFactory([{"CPU": 1}], bundle_label_selector=[{"zone": "eu"}])
    changed = tune_request.with_bundles(asked, [{"CPU": 2}])

    assert tune_request.group_of(changed).selectors == [{"zone": "eu"}]
    assert list(tune_request.bundles_of(changed)) == [{"CPU": 2}]


def test_the_inner_scheduler_of_a_resource_changing_scheduler_is_found():
    inner = FIFOScheduler()

    assert tune_schedulers.scheduler_inside(ResourceChangingScheduler(inner)) is inner
    assert tune_schedulers.scheduler_inside(inner) is None


@pytest.mark.parametrize(
    ("scheduler", "found"),
    [
        (AsyncHyperBandScheduler(max_t=7), {"training_iteration": 7}),
        (HyperBandScheduler(time_attr="time_total_s", max_t=9), {"time_total_s": 9}),
        (HyperBandForBOHB(max_t=8), {"training_iteration": 8}),
        (AsyncHyperBandScheduler(max_t=7, stop_last_trials=False), {}),
        (PopulationBasedTraining(hyperparam_mutations={"x": [1]}), {}),
        (FIFOScheduler(), {}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_maximum_training_time_of_a_scheduler_is_read(scheduler, found):
    assert tune_schedulers.longest_trials(scheduler) == found


def test_the_class_that_tune_creates_for_a_function_inherits_from_mixins():
    class First(tune.Trainable):
        pass

    def function(config):
        return None

    tune_trial.add_mixin(function, First)
    made = tune_trial.class_of_function(function)

    assert issubclass(made, First)
    assert tune_trial.is_function_class(made)
    assert not tune_trial.is_function_class(First)


def test_the_function_of_a_trainable_can_be_wrapped(tmp_path):
    def function(config):
        tune.report({"seen": seen[:]})

    def wrap(call):
        def within(config):
            seen.append("before")
            return call(config)

        return within

    seen = []
    wrapped = tune_trial.with_function_wrapped(tune_trial.class_of_function(function), wrap)

    (trial,) = tune.run(wrapped, storage_path=str(tmp_path), verbose=0).trials

    assert trial.last_result["seen"] == ["before"]
    assert tune_trial.is_function_class(wrapped)
    assert wrapped.__name__ == tune_trial.class_of_function(function).__name__


def test_tunes_warning_about_unused_gpus_can_be_hidden_and_shown_again():
    of_tune = importlib.import_module("ray.tune.tune")
    assert "logger = logging.getLogger(__name__)" in inspect.getsource(of_tune)
    assert '"Tune detects GPUs, but no trials are using GPUs. "' in inspect.getsource(of_tune)
    logger = logging.getLogger(of_tune.__name__)
    shown = []
    handler = logging.Handler()
    handler.emit = lambda record: shown.append(record.getMessage())
    logger.addHandler(handler)
    tune_schedulers.hide_gpu_warning()
    try:
        logger.error("Tune detects GPUs, but no trials are using GPUs. To enable")
        logger.error("another message")
        tune_schedulers.show_gpu_warning()
        logger.error("Tune detects GPUs again")
    finally:
        tune_schedulers.show_gpu_warning()
        logger.removeHandler(handler)

    assert shown == ["another message", "Tune detects GPUs again"]


def test_the_storage_of_a_trial_is_read_in_its_process(tmp_path):
    class AsClass(tune.Trainable):
        def step(self):
            return {"stored": tune_trial.storage_of(self).trial_fs_path, "done": True}

    (trial,) = tune.run(AsClass, storage_path=str(tmp_path), verbose=0).trials

    assert str(tmp_path) in trial.last_result["stored"]
    assert tune_trial.is_duplicate({"__duplicate__": True})


def test_the_error_of_a_trial_is_unpickled_from_tunes_file(tmp_path):
    def fail(config):
        raise ValueError("failed in a step")

    (trial,) = tune.run(fail, storage_path=str(tmp_path), raise_on_failed_trial=False, verbose=0).trials
    error = tune_trial.unpickled_error(Path(trial.pickled_error_file).read_bytes())

    assert isinstance(error, ValueError)
    assert "failed in a step" in str(error)
    assert tune_trial.unpickled_error(b"no pickle") is None


def test_a_stored_checkpoint_is_reported_without_a_copy(tmp_path):
    def function(config):
        storage = tune_trial.storage_of_session()
        folder = Path(storage.trial_fs_path, "stored_by_others")
        folder.mkdir()
        (folder / "weights").touch()
        checkpoint = tune.Checkpoint(str(folder), filesystem=storage.storage_filesystem)
        tune_trial.report_stored_checkpoint({"loss": 1}, checkpoint)

    (trial,) = tune.run(function, storage_path=str(tmp_path), verbose=0).trials

    assert trial.last_result["loss"] == 1
    assert Path(trial.checkpoint.path).name == "stored_by_others"
    assert [path.parent for path in tmp_path.rglob("weights")] == [Path(trial.checkpoint.path)]


def test_the_replacement_error_counts_as_a_preemption():
    error = tune_trial.to_be_replaced("it holds too much")

    assert error.preempted
    assert "it holds too much" in str(error)


def test_a_run_recognizes_the_replacement_error():
    error = tune_trial.to_be_replaced("it holds too much")

    assert tune_trial.replacement_in(error) is error
    assert tune_trial.replacement_in(RayActorError(preempted=True)) is None


def test_configs_are_sampled_and_the_extremes_of_domains_are_read():
    import numpy as np

    space = {"size": tune.choice([1, 8]), "units": tune.randint(2, 9), "kind": tune.grid_search(["a", "b"])}

    assert {each["kind"] for each in tune_trial.draw(space, np.random.RandomState(0))} == {"a", "b"}
    assert tune_trial.is_domain(space["size"])
    assert [tune_trial.extremes(space[name]) for name in ("size", "units")] == [[1, 8], [2, 8]]
    assert tune_trial.extremes(tune.qrandint(3, 20, 4)) == [4, 20]
    assert tune_trial.extremes(tune.choice(list(np.array([16, 64])))) == [16, 64]
    assert tune_trial.extremes(tune.uniform(0, 1)) == []
