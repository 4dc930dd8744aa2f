"""Plans use only whole, intact TPU slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node, slice_hosts
from tune_policies import (
    AcceleratorPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    NodeCapacity,
    ReservingPolicy,
)

V4 = {"resource": "TPU", "amount": 4, "accelerator_type": "TPU-V4", "topology": "2x2x2", "num_workers": 2}
A, B, C = (slice_hosts(name) for name in "abc")


def policy(**changes):
    return AcceleratorPolicy(**V4 | changes)


def changed(host, **changes):
    return host.model_copy(update=changes)


def without_custom(host, name):
    custom = {key: amount for key, amount in host.resources.custom.items() if key != name}
    return changed(host, resources=host.resources.replaced(custom=custom))


def test_a_trial_uses_a_whole_slice():
    plan = policy().plan(ClusterCapacity.of(*A, *B))

    assert (plan.max_concurrent_trials, plan.limited_by) == (2, "TPU slices")
    assert plan.resources_per_worker == {"CPU": 8, "TPU": 4}
    assert (plan.common_slot.topology, plan.accelerator_type, plan.worker.custom.get("TPU", 0) > 0) == (
        "2x2x2",
        "TPU-V4",
        True,
    )
    assert plan.explain().splitlines()[1] == (
        "  each trial: 2 workers, each with 8 CPUs, 4 TPUs on TPU-V4 in whole 2x2x2 slices; "
        "the trial driver reserves 1 MiB of host memory"
    )


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(CpuPolicy(cpus=1), id="CPUs of hosts"),
        pytest.param(AcceleratorPolicy(resource="TPU", amount=4), id="all chips of a host"),
    ],
)
def test_a_slice_with_a_host_in_use_is_not_used(first):
    """Train chooses a slice by its first host, and would then wait until the other hosts of the slice are free."""
    plan = MixedPolicy(CappedPolicy(first, 1), policy()).plan(ClusterCapacity.of(*A, *B))

    assert (plan.max_concurrent_trials, plan.common_slot.topology) == (1, None)
    assert "Put the policy for TPU slices first." in plan.reasons[0]


def test_slots_on_other_hosts_do_not_affect_slices():
    v5p = slice_hosts("v5p", accelerator_type="TPU-V5P", pod_type="v5p-16")
    first = CappedPolicy(AcceleratorPolicy(resource="TPU", amount=4, accelerator_type="TPU-V5P"), 1)

    assert MixedPolicy(first, policy()).plan(ClusterCapacity.of(*v5p, *A)).max_concurrent_trials == 2


@pytest.mark.parametrize(
    ("cpus", "each"),
    [
        pytest.param((8, 8), 2, id="all"),
        pytest.param((8, 6), 1, id="whole slices, limited by the host with the fewest CPUs"),
        pytest.param((2, 8), 0.5, id="a part of a slice"),
        pytest.param((4, 8), 1, id="one"),
    ],
)
def test_the_cpus_of_a_host_are_divided_among_its_chips(cpus, each):
    hosts = [changed(host, resources=host.resources.replaced(cpus=n)) for host, n in zip(A, cpus, strict=True)]

    plan = policy(amount=1, num_workers=8).plan(ClusterCapacity.of(*hosts))

    assert plan.worker.cpus == each
    assert plan.reasons[0] == "each trial uses 1 whole 2x2x2 slice, with 8 workers of 1 TPU per slice"


def test_a_slice_is_intact_if_all_its_hosts_have_the_label_of_the_first_host():
    """KubeRay gives the labels of a group to all its pods."""
    hosts = [changed(host, labels=host.labels | {"ray.io/tpu-worker-id": "0"}) for host in A]

    plan = policy(cpus=4).plan(ClusterCapacity.of(*hosts))

    assert plan.max_concurrent_trials == 1


BROKEN = {
    "a host is missing": (B[:1], "its alive hosts have 4 of its 8 chips"),
    "a host has lost a chip": (
        [B[0], changed(B[1], resources=B[1].resources.replaced(custom={"TPU": 3}))],
        "its alive hosts have 7 of its 8 chips",
    ),
    "no host is the first of the slice": (
        [changed(host, labels=host.labels | {"ray.io/tpu-worker-id": "1"}) for host in B],
        "none of its hosts has the label ray.io/tpu-worker-id=0, but its first host must have it",
    ),
    "the first host has no head resource": (
        [without_custom(B[0], "TPU-v4-16-head"), B[1]],
        "its first host lacks the resource TPU-v4-16-head",
    ),
    "a host has too few CPUs": (
        [B[0], changed(B[1], resources=B[1].resources.replaced(cpus=3))],
        "its hosts have room for 1 of 2 workers",
    ),
    "a host is of unknown type": (
        [B[0], changed(B[1], accelerator_type=None)],
        "its hosts have room for 1 of 2 workers",
    ),
}


@pytest.mark.parametrize(("hosts", "why"), BROKEN.values(), ids=BROKEN)
def test_a_broken_slice_is_not_used_and_is_reported(hosts, why):
    plan = policy(cpus=4).plan(ClusterCapacity.of(*A, *hosts))

    assert plan.max_concurrent_trials == 1
    assert f"slice 'b' is not used: {why}" in plan.reasons


def test_a_slice_of_one_host_may_have_any_name():
    hosts = [
        *slice_hosts("s", topology="2x4", accelerator_type="TPU-V6E", pod_type="v6e-8", num_hosts=1, tpus=8),
        gpu_node("t", gpus=0, cpus=8, accelerator_type="TPU-V6E", custom={"TPU": 8}).model_copy(
            update={"labels": {"ray.io/tpu-pod-type": "v6e-8"}}
        ),
    ]

    plan = policy(accelerator_type="TPU-V6E", topology="2x4", amount=8, num_workers=1).plan(ClusterCapacity.of(*hosts))

    assert plan.max_concurrent_trials == 2


def test_a_single_host_topology_on_two_hosts_is_not_used():
    """Ray Train would place workers for this topology one by one, on hosts of any slice."""
    hosts = slice_hosts("s", topology="2x4", accelerator_type="TPU-V6E", pod_type="v6e-8")

    with pytest.raises(InfeasibleRequestError, match="its alive hosts have 4 of its 8 chips"):
        policy(accelerator_type="TPU-V6E", topology="2x4").plan(ClusterCapacity.of(*hosts))


def test_another_topology_of_the_same_pod_type_is_not_counted_but_is_reported():
    """Ray Train selects slices only by pod type."""
    v6e = {"accelerator_type": "TPU-V6E", "pod_type": "v6e-16", "num_hosts": 4}
    hosts = [*slice_hosts("square", topology="4x4", **v6e), *slice_hosts("long", topology="2x8", **v6e)]

    plan = policy(accelerator_type="TPU-V6E", topology="4x4", num_workers=4).plan(ClusterCapacity.of(*hosts))

    assert plan.max_concurrent_trials == 1
    assert (
        "Ray Train selects a slice by its pod type v6e-16, so a trial may get a slice with topology 2x8 instead"
        in plan.reasons
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_workers": 0}, "num_workers=0 does not fill whole slices, .* for 2 workers .* Set num_workers=2$"),
        ({"num_workers": 3}, "Set num_workers=2 or 4$"),
        ({"topology": "2x2"}, "Ray supports no TPU-V4 slices of topology '2x2'; did you mean '2x2x"),
        ({"topology": "banana"}, "Ray supports no TPU-V4 slices of topology 'banana'. Use one of 2x2x1, 2x2x2, 2x2x4,"),
        (
            {"amount": 8, "topology": "2x2x1"},
            "amount=8 of TPU does not evenly divide the 4 chips of a 2x2x1 slice. Set amount=4",
        ),
        ({"num_workers": (2, 4)}, "cannot change the number of workers on a slice. Set a single number"),
        ({"cpus": 0}, "cpus=0 is not valid for TPU slices, because Ray Train would reserve a whole CPU"),
    ],
)
def test_workers_that_cannot_fill_slices_are_rejected_at_construction(changes, message):
    with pytest.raises(InvalidResourcesError, match=message):
        policy(**changes)


@pytest.mark.parametrize(
    ("changes", "hosts", "suggestion"),
    [
        ({"num_workers": 6}, [*A, *B], "Set num_workers=4, or add slices."),
        ({"cpus": 9}, A, "Request fewer resources per worker, or add a 2x2x2 slice. Its hosts must have Ray's labels"),
        (
            {"topology": "2x2x4", "num_workers": 4},
            A,
            "Set topology='2x2x2', or add a 2x2x4 slice.",
        ),
    ],
)
def test_too_few_slices_raise_an_error_with_a_suggestion(changes, hosts, suggestion):
    with pytest.raises(InfeasibleRequestError) as caught:
        policy(**changes).plan(ClusterCapacity.of(*hosts))

    assert caught.value.short_of == "TPU slices"
    assert caught.value.suggestion.startswith(suggestion)


@pytest.mark.parametrize(
    ("cpus", "at_once"),
    [pytest.param(8, 1, id="all CPUs of a host"), pytest.param(None, 2, id="the same number of CPUs on both hosts")],
)
def test_a_policy_for_slices_can_be_wrapped(cpus, at_once):
    plan = ReservingPolicy(policy(cpus=cpus), cpus=8).plan(ClusterCapacity.of(*A, *B))

    assert (plan.common_slot.topology, plan.max_concurrent_trials) == ("2x2x2", at_once)


@given(
    st.lists(st.sampled_from(["intact", "half", "headless", "other"]), max_size=6),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.randoms(),
)
def test_the_intact_slices_determine_the_number_of_trials(kinds, slices_per_trial, tpus, rng):
    cluster: list[NodeCapacity] = []
    for i, kind in enumerate(kinds):
        hosts = slice_hosts(f"slice-{i}")
        match kind:
            case "half":
                hosts = hosts[:1]
            case "headless":
                hosts = [without_custom(host, "TPU-v4-16-head") for host in hosts]
            case "other":
                hosts = slice_hosts(f"slice-{i}", topology="2x2x1", pod_type="v4-8", num_hosts=1)
        cluster += hosts
    rng.shuffle(cluster)
    wanted = policy(amount=tpus, num_workers=slices_per_trial * 8 // tpus)
    expected = kinds.count("intact") // slices_per_trial

    try:
        planned = wanted.plan(ClusterCapacity.of(*cluster)).max_concurrent_trials
    except InfeasibleRequestError:
        planned = 0
    assert planned == expected
