"""Train runs that grow: from how many workers a trial begins with to how many it may have."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node, nodes
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    GpuMemoryMeasurement,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    TrialPlan,
    load_policy,
)
from tune_policies.oom import OutOfMemory
from tune_policies.placement.idle import idle
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.policies.policy import build_policy
from tune_policies.tune.oom_retry import larger_plan


def workers(plan):
    return plan.max_concurrent_trials, plan.num_workers, plan.max_workers


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [
        pytest.param(4, (4, 2, 2), id="all that fit: no room to grow"),
        pytest.param(3, (3, 2, 4), id="one fewer: its workers are for the others"),
        pytest.param(1, (1, 2, 8), id="alone: all there is"),
    ],
)
def test_a_trial_may_grow_into_what_the_others_leave_with_their_fewest(at_once, expected):
    plan = CappedPolicy(CpuPolicy(num_workers=(2, 9)), at_once).plan(nodes((8, 0)))

    assert workers(plan) == expected


def test_a_trial_grows_no_further_than_asked_for():
    plan = CappedPolicy(CpuPolicy(num_workers=(2, 3)), 1).plan(nodes((8, 0)))

    assert workers(plan) == (1, 2, 3)


@given(
    shapes=st.lists(st.tuples(st.integers(1, 16), st.integers(0, 4)), min_size=1, max_size=4),
    gpus=st.sampled_from([0.1, 0.3, 0.5, 0.6, 1, 2]),
    least=st.integers(1, 5),
    more=st.integers(1, 20),
    cap=st.integers(1, 10),
)
def test_what_one_trial_may_grow_to_fits_beside_the_fewest_of_the_others(shapes, gpus, least, more, cap):
    policy = CappedPolicy(GpuPolicy(gpus=gpus, cpus=0.1, num_workers=(least, least + more)), cap)
    capacity = nodes(*shapes)
    try:
        plan = policy.plan(capacity)
    except InfeasibleRequestError:
        return
    at_once, fewest, most = workers(plan)
    all_workers = most + (at_once - 1) * fewest

    held = GpuPolicy(gpus=plan.worker.gpus, cpus=0.1, num_workers=1).plan(capacity).max_concurrent_trials

    assert all_workers <= held
    assert all_workers == held or most == least + more


def test_shares_of_a_gpu_are_counted_on_each_device():
    """In sums, four GPUs would hold six workers of 0.6."""
    plan = GpuPolicy(gpus=0.6, cpus=1, num_workers=(1, 8)).plan(nodes((16, 4)))

    assert workers(plan.capped(1, limited_by="test")) == (1, 1, 4)


def test_what_is_left_free_for_others_is_no_room_to_grow():
    policy = CappedPolicy(ReservingPolicy(CpuPolicy(num_workers=(2, 9)), cpus=3), 1)

    assert workers(policy.plan(nodes((8, 0)))) == (1, 2, 5)


def test_an_even_split_grows_into_what_its_share_leaves():
    """Each of two trials with two workers can have no more than 2 CPUs a worker, of 11."""
    plan = EvenSplitPolicy(num_trials=2, num_workers=(2, 9)).plan(nodes((11, 0)))

    assert (plan.worker.cpus, *workers(plan)) == (2, 2, 2, 3)


def test_each_size_of_a_profile_has_its_own_room_to_grow():
    measured = [GpuMemoryMeasurement(config={"batch": each}, total_bytes=each * 2**30) for each in (4, 14)]
    policy = GpuMemoryPolicy(profile=GpuMemoryProfile(measurements=measured), cpus=1, num_workers=(1, 9))

    plan = CappedPolicy(policy, 1).plan(ClusterCapacity.of(gpu_node("a", gpus=2, cpus=32, gpu_memory_gib=16)))

    assert [workers(plan.for_config({"batch": each})) for each in (4, 14)] == [(1, 1, 6), (1, 1, 2)]


@pytest.mark.parametrize(
    "capacity", [nodes((8, 0)), nodes((8, 0), (8, 0), (8, 0))], ids=["on one node", "on several nodes"]
)
def test_beside_other_kinds_of_slots_workers_stay_and_the_plan_says_so(capacity):
    """The other kind has what they would grow into."""
    plan = MixedPolicy(CappedPolicy(CpuPolicy(num_workers=(2, 9)), 1), CpuPolicy()).plan(capacity)

    assert len(plan.slots) == 2
    assert [slot.is_elastic for slot in plan.slots] == [False, False]
    assert "each trial keeps its fewest workers" in plan.explain()


def test_a_mix_of_one_kind_grows_like_that_kind():
    policy = CappedPolicy(CpuPolicy(num_workers=(2, 9)), 1)

    assert MixedPolicy(policy, GpuPolicy()).plan(nodes((8, 0))).slots == policy.plan(nodes((8, 0))).slots


def test_what_a_trial_may_grow_into_is_idle_for_that_reason():
    capacity = nodes((8, 0))
    plan = CappedPolicy(CpuPolicy(num_workers=(2, 5)), 2).plan(capacity)

    rows = [str(row) for row in idle(capacity, plan)]

    assert rows == [
        "3 of 8 CPUs: left for one trial to grow into",
        "1 of 8 CPUs: less than one more trial needs",
    ]


def test_a_slot_whose_workers_may_become_fewer_than_they_are_is_refused():
    with pytest.raises(InvalidResourcesError, match="max_workers is what num_workers may grow to: 1 is too few for"):
        TrialSlot(
            trial=Resources(memory_bytes=1),
            max_concurrent_trials=1,
            num_workers=2,
            max_workers=1,
            per_worker=Resources(cpus=1),
        )


def test_what_the_autoscaler_may_add_is_room_to_grow():
    small = NodeTypeCapacity(name="small", resources=Resources(cpus=4), max_nodes_to_add=2)
    capacity = nodes((4, 0)).model_copy(update={"node_types": (small,)})

    plan = AutoscalingPolicy(CpuPolicy(num_workers=(2, 20))).plan(capacity)

    assert workers(plan.capped(1, limited_by="test")) == (1, 2, 12)


def test_drivers_take_their_memory_from_what_a_trial_may_grow_to():
    capacity = ClusterCapacity.of(Resources(cpus=8, memory_bytes=4 * 2**30))

    plan = CpuPolicy(memory="1GiB", num_workers=(1, 4)).plan(capacity)

    assert workers(plan.capped(1, limited_by="test")) == (1, 1, 3)


@pytest.mark.parametrize(
    "policy",
    [
        CpuPolicy(num_workers=(2, 8)),
        GpuPolicy(gpus=0.5, num_workers=(2, 8)),
        GpuMemoryPolicy(gpu_memory="8GiB", num_workers=(2, 8)),
        AcceleratorPolicy(resource="NPU", num_workers=(2, 8)),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_every_policy_with_workers_takes_a_pair_in_python_and_json(policy):
    capacity = ClusterCapacity.of(gpu_node("a", gpus=4, cpus=32, gpu_memory_gib=16, custom={"NPU": 8}))

    plan = policy.plan(capacity)

    assert plan.capped(1, limited_by="test").max_workers == 8
    assert json.loads(policy.to_json())["num_workers"] == [2, 8]
    assert build_policy(json.loads(policy.to_json())) == policy
    assert TrialPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("policy.yaml", "kind: CpuPolicy\nnum_workers: [2, 8]\n"),
        ("policy.yaml", "kind: CpuPolicy\nnum_workers:\n  - 2\n  - 8\n"),
        ("policy.json", '{"kind": "CpuPolicy", "num_workers": [2, 8]}'),
    ],
)
def test_a_policy_file_takes_a_pair(tmp_path, file, text):
    (tmp_path / file).write_text(text)

    assert load_policy(tmp_path / file) == CpuPolicy(num_workers=(2, 8))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("[8, 2]", r"num_workers must name the fewest first, got \[8, 2\]"),
        ("[0, 4]", "each of num_workers must be a whole number, 1 or above, got 0"),
        ("[2]", r"num_workers must be a whole number, or the fewest and the most such as \(2, 8\): got \[2\]"),
        ("[2, 8.5]", "each of num_workers must be a whole number, 1 or above, got 8.5"),
        ("2-8", "num_workers must be a whole number, 0 or above, got '2-8'"),
    ],
)
def test_a_pair_in_a_file_that_makes_no_sense_is_an_error_that_names_the_file(tmp_path, pair, message):
    (tmp_path / "policy.yaml").write_text(f"kind: CpuPolicy\nnum_workers: {pair}\n")

    with pytest.raises(InvalidResourcesError, match=rf"policy\.yaml: .*{message}"):
        load_policy(tmp_path / "policy.yaml")


def test_the_same_number_twice_is_that_number():
    assert CpuPolicy(num_workers=(3, 3)) == CpuPolicy(num_workers=3)


def test_the_explanation_says_from_how_many_to_how_many():
    text = CappedPolicy(CpuPolicy(num_workers=(2, 8)), 1).plan(nodes((8, 0))).explain()

    assert "each trial: 2 to 8 workers, each with 1 CPU; the driver holds 1 MiB of host memory" in text.replace(
        ".0 MiB", " MiB"
    )


def test_too_few_for_the_fewest_is_an_error_that_names_both():
    with pytest.raises(InfeasibleRequestError, match=r"one trial needs 6 to 8 workers, each with 1 CPU, but"):
        CpuPolicy(num_workers=(6, 8)).plan(nodes((4, 0)))


@pytest.mark.parametrize(
    ("num_workers", "message"),
    [
        ((8, 2), r"num_workers must name the fewest first, got \(8, 2\)"),
        ((0, 2), "each of num_workers must be a whole number, 1 or above, got 0"),
        ((1, 2, 3), "num_workers must be a whole number, or the fewest and the most"),
        ("2", "num_workers must be a whole number, 0 or above, got '2'"),
    ],
)
def test_a_pair_that_makes_no_sense_is_refused(num_workers, message):
    with pytest.raises(InvalidResourcesError, match=message):
        CpuPolicy(num_workers=num_workers)


def test_after_running_out_of_memory_fewer_workers_have_room_to_grow():
    gpus = gpu_node("a", gpus=2, cpus=8, gpu_memory_gib=16)
    plan = CappedPolicy(GpuPolicy(gpus=0.25, cpus=1, num_workers=(1, 8)), 1).plan(ClusterCapacity.of(gpus))

    after = larger_plan(plan, OutOfMemory(kind="accelerator"), growth=2.0, max_gpus=1.0, nodes=[gpus])

    assert (workers(plan), workers(after)) == ((1, 1, 8), (1, 1, 4))


def test_a_trial_has_whole_tpu_slices_so_it_does_not_grow():
    with pytest.raises(InvalidResourcesError, match="a trial has whole slices and cannot grow, so give one number"):
        AcceleratorPolicy(resource="TPU", amount=4, accelerator_type="TPU-V4", topology="2x2x2", num_workers=(2, 4))
