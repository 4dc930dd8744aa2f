"""Tests of decisions from a benchmark run. A decision compares the times and costs of whole trials on a cluster."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.clusters import gpu_node
from tests.measured_runs import MEASURED_AT, a_run, process
from tune_policies import ClusterCapacity, InvalidResourcesError
from tune_policies.benchmarks.decide.cpu_nodes import Nodes, NodesQuestion
from tune_policies.benchmarks.decide.crossover import crossover, describe
from tune_policies.benchmarks.decide.device_decision import Terms, UndecidedError, decide
from tune_policies.benchmarks.decide.price_file import Instance, Prices
from tune_policies.benchmarks.record.packing_record import UNREAD_GPU, ThroughputRecord, ThroughputSample
from tune_policies.benchmarks.record.run_set import Configuration, DeviceFound, Failure, NoiseReading
from tune_policies.benchmarks.record.settings import Settings
from tune_policies.benchmarks.report.tables import print_decision

NODE = gpu_node("a", gpus=2, cpus=16, gpu_memory_gib=16, accelerator_type="A10G")
T4S = gpu_node("b", gpus=4, cpus=32, gpu_memory_gib=16, accelerator_type="T4")
UNKNOWN = gpu_node("c", gpus=2, cpus=16, gpu_memory_gib=16)
CLUSTER = ClusterCapacity.of(NODE)
PRICES = Prices(
    date="2026-05-01",
    currency="USD",
    source="by hand",
    instances=(
        Instance(name="c", price=0.8, cpus=16),
        Instance(name="g", price=2.0, cpus=8, gpus=1, accelerator_type="A10G"),
    ),
)
TERMS = Terms(steps_per_trial=1000)


def sizes_of(decided):
    (workload,) = decided.decision.workloads
    return {each.size: each for each in workload.sizes}


def test_the_time_of_a_trial_is_its_start_time_plus_the_time_of_its_steps():
    found = sizes_of(decide(a_run(), TERMS, CLUSTER))

    # A trial takes 1 s plus 1,000 steps of 25.6 ms on the CPU, and 5 s plus 1,000 steps of 1.256 ms on the GPU.
    assert found[256].cpu.trial_s == pytest.approx(26.6, rel=0.01)
    assert found[256].gpu.trial_s == pytest.approx(6.256, rel=0.01)
    assert (found[256].cpu.start_s, found[256].gpu.start_s) == (pytest.approx(1), pytest.approx(5))
    assert found[256].speedup == pytest.approx(26.6 / 6.256, rel=0.01)


def test_the_answer_compares_trials_and_not_steps():
    # A step of size 16 takes 1.6 ms on the CPU and 1.016 ms on the GPU. A trial starts 4 s later on the GPU.
    short, long = (
        sizes_of(decide(a_run(), Terms(steps_per_trial=steps), CLUSTER))[16].answer for steps in (1000, 100_000)
    )

    assert (short, long) == ("CPU", "GPU")


def test_trials_per_hour_count_all_cpus_and_all_gpus():
    found = sizes_of(decide(a_run(), TERMS, CLUSTER))[256]

    assert (found.cpu.at_once, found.cpu.trials_per_hour) == (4, pytest.approx(4 * 3600 / found.cpu.trial_s))
    # Each GPU has enough memory for 4 trials of 2 GiB plus overhead, but its 8 CPUs are enough for only 2 trials.
    assert (found.gpu.at_once, found.gpu.trials_per_hour) == (4, pytest.approx(2 * 3600 / found.gpu.trial_s))


@pytest.mark.parametrize(
    ("nodes", "at_once", "notes"),
    [
        pytest.param([NODE], 4, 0, id="the measured type"),
        pytest.param([NODE, T4S], 4, 1, id="the measured type and another one"),
        pytest.param([T4S], 0, 1, id="only another type"),
        pytest.param([UNKNOWN], 4, 0, id="an unknown type"),
    ],
)
def test_only_gpus_of_the_measured_type_count(nodes, at_once, notes):
    decided = decide(a_run(), TERMS, ClusterCapacity.of(*nodes))

    found = sizes_of(decided)[256].gpu
    assert (found.at_once, found.trials_per_hour > 0) == (at_once, at_once > 0)
    note = "the run measured A10G, so the cluster's GPUs of other types (T4) are not counted"
    assert list(decided.notes) == [note] * notes


def packed_on(gpu, workload="mlp[256]"):
    rates = {("alone", 1): 100, ("packed", 2): 150, ("packed", 8): 300, ("packed with mps", 2): 190}
    samples = [
        ThroughputSample(
            workload=workload, mode=mode, trials_per_gpu=k, num_trials=rate, seconds=3600, trial_seconds=(), losses=()
        )
        for (mode, k), rate in rates.items()
    ]
    return ThroughputRecord(gpu=gpu, machine="", command="", plans={}, samples=samples)


@pytest.mark.parametrize("gpu", ["NVIDIA A10G", "NVIDIA L4, NVIDIA A10G", UNREAD_GPU])
def test_sharing_a_gpu_raises_the_throughput_as_measured_by_packing(gpu):
    found = sizes_of(decide(a_run(), TERMS, CLUSTER, PRICES, packed_on(gpu)))[256]

    assert found.gpu.trials_per_hour == pytest.approx(1.5 * 2 * 3600 / found.gpu.trial_s)
    assert found.gpu.cost_per_trial == pytest.approx(2.0 * found.gpu.trial_s / 3600 / 1.5)
    assert found.flips_at == pytest.approx(1.5 * found.speedup)


PARTS = Prices(date="2026-05-01", currency="USD", cpu=0.05, gpus={"A10G": 0.9})


def on_one_a10g(cpus, prices):
    cluster = ClusterCapacity.of(gpu_node("a", gpus=1, cpus=cpus, gpu_memory_gib=64, accelerator_type="A10G"))
    return sizes_of(decide(a_run(), TERMS, cluster, prices, packed_on("NVIDIA A10G")))[256]


def test_trials_that_share_a_gpu_are_charged_for_the_cpus_of_all_of_them():
    found = on_one_a10g(64, PARTS)

    # Eight trials with 4 CPUs each finish 3 times as many trials per hour.
    assert found.gpu.cost_per_trial == pytest.approx((0.9 + 32 * 0.05) / 3 * found.gpu.trial_s / 3600)
    assert found.gpu.price_of == "1 A10G and 32 CPUs (shared by 8 trials)"
    assert found.flips_at == pytest.approx(3 * found.speedup)


@pytest.mark.parametrize(
    ("prices", "per_hour", "gain"),
    [
        (PARTS.model_copy(update={"cpu": 0.1}), 0.9 + 8 * 0.1, 1.5),
        (PARTS.model_copy(update={"cpu": 0.5}), 0.9 + 4 * 0.5, 1),
        (PRICES, 2.0, 1.5),
    ],
    ids=["two trials", "one trial", "eight trials do not fit on the machine"],
)
def test_the_cost_of_a_trial_is_that_of_the_cheapest_number_of_trials_per_gpu(prices, per_hour, gain):
    found = on_one_a10g(64, prices)

    assert found.gpu.cost_per_trial == pytest.approx(per_hour / gain * found.gpu.trial_s / 3600)
    # The throughput is that of the fastest number of trials.
    assert found.gpu.trials_per_hour == pytest.approx(3 * 3600 / found.gpu.trial_s)


@pytest.mark.parametrize(
    ("name", "gains", "without"), [("mlp[256]", [1, 1, 1.5], "16, 64"), ("mlp", [1, 1.5, 1], "16, 256")]
)
def test_a_packing_record_applies_only_to_its_size_which_is_the_default_size_if_its_name_has_none(name, gains, without):
    decided = decide(a_run(sizes=(16, 64, 256)), TERMS, CLUSTER, PRICES, packed_on(UNREAD_GPU, name))

    assert [size.flips_at / size.speedup for size in sizes_of(decided).values()] == pytest.approx(gains)
    note = "the packing record contains no measurement of this size, so one trial per GPU is assumed"
    assert f"mlp at {without}: {note}" in decided.notes


def test_a_packing_record_of_another_gpu_is_refused():
    with pytest.raises(InvalidResourcesError, match=r"measured on 'NVIDIA H200', but the run on A10G\. Run `tune"):
        decide(a_run(), TERMS, CLUSTER, PRICES, packed_on("NVIDIA H200"))


def test_a_trial_costs_its_fraction_of_the_price_of_the_cheapest_machine():
    found = sizes_of(decide(a_run(), TERMS, CLUSTER, PRICES))[256]

    assert found.cpu.cost_per_trial == pytest.approx(0.2 * found.cpu.trial_s / 3600)
    assert found.gpu.cost_per_trial == pytest.approx(2.0 * found.gpu.trial_s / 3600)
    # The GPU is 4 times as fast as the CPU and 10 times as expensive.
    assert (found.answer, found.cheapest) == ("GPU", "CPU")
    assert found.flips_at == found.speedup


def test_without_gpus_in_the_cluster_the_number_of_gpu_trials_per_hour_is_0():
    found = sizes_of(decide(a_run(), TERMS, ClusterCapacity.of(gpu_node("a", gpus=0, cpus=16))))[256]

    assert (found.gpu.at_once, found.gpu.trials_per_hour) == (0, 0)
    assert found.answer == "GPU"


def test_a_decision_can_compare_the_cpu_with_a_gpu_fraction():
    run_set = a_run(("cpu", "gpu", "gpu@0.25"))

    found = sizes_of(decide(run_set, Terms(steps_per_trial=1000, gpu="gpu@0.25"), CLUSTER))[256]

    assert (found.gpu.device, found.gpu.at_once) == ("gpu@0.25", 4)


def test_the_cost_of_a_trial_on_two_gpus_is_the_full_price_of_both_gpus_and_its_cpus():
    runs = [process("mlp", 256, "cpu", number) for number in range(5)]
    for number in range(5):
        of_gpu = process("mlp", 256, "gpu", number)
        runs.append(
            of_gpu.model_copy(update={"configuration": Configuration(workload="mlp", size=256, device="gpu@2")})
        )
    prices = Prices(date="2026-05-01", currency="USD", cpu=0.05, gpus={"A10G": 0.9})
    run_set = a_run(devices=(DeviceFound(device="gpu@2", slot="a slot", accelerator_type="A10G"),), runs=runs)

    found = sizes_of(decide(run_set, TERMS, CLUSTER, prices))[256].gpu

    assert (found.at_once, found.trials_per_hour) == (1, pytest.approx(3600 / found.trial_s))
    assert found.cost_per_trial == pytest.approx((2 * 0.9 + 4 * 0.05) * found.trial_s / 3600)
    assert found.price_of == "2 A10G and 4 CPUs"


def test_an_ambiguous_comparison_of_costs_is_reported_with_a_reason():
    # The price ratio is almost equal to the speed-up, so a trial costs almost the same on both devices.
    faster = sizes_of(decide(a_run(), TERMS, CLUSTER))[256].speedup
    prices = Prices(date="2026-05-01", currency="USD", cpu=0.05, gpus={"A10G": 0.2 * faster * 1.05 - 0.2})

    decided = decide(a_run(), TERMS, CLUSTER, prices)

    assert (sizes_of(decided)[256].answer, sizes_of(decided)[256].cheapest) == ("GPU", "ambiguous")
    assert any(note.startswith("mlp at 256: by cost, the interval from") for note in decided.notes)


AMBIGUOUS_TERMS = Terms(steps_per_trial=1333)


@pytest.mark.parametrize(
    ("prices", "by_cost"), [(None, False), (PRICES, True)], ids=["without prices", "the cost is decided"]
)
def test_a_size_is_decided_if_its_time_or_its_cost_has_an_unambiguous_answer(prices, by_cost):
    decided = decide(a_run(sizes=(40,), rounds=2), AMBIGUOUS_TERMS, CLUSTER, prices)

    assert sizes_of(decided)[40].answer == "ambiguous"
    assert (decided.is_decided_by("time"), decided.is_decided_by("cost")) == (False, by_cost)
    assert decided.is_decided == by_cost


def test_the_decision_contains_the_machine_and_the_versions():
    decision = decide(a_run(), TERMS, CLUSTER, PRICES).decision

    assert (decision.cpu_model, decision.accelerator_type) == ("a CPU", "A10G")
    assert (decision.versions, decision.measured_at) == ({"torch": "2.9.0"}, MEASURED_AT)
    assert (decision.price_date, decision.currency) == ("2026-05-01", "USD")


def test_noise_makes_a_small_difference_ambiguous_but_not_a_large_difference():
    noisy = a_run(sizes=(32, 1024), noise=tuple(NoiseReading(round=number, load=2.0) for number in range(5)))
    terms = Terms(steps_per_trial=1500)

    quiet = sizes_of(decide(a_run(sizes=(32, 1024)), terms, CLUSTER))
    found = decide(noisy, terms, CLUSTER)

    assert (quiet[32].answer, sizes_of(found)[32].answer, sizes_of(found)[1024].answer) == ("CPU", "ambiguous", "GPU")
    assert any("mlp at 32, 1024: other processes used 2.00 CPUs" in note for note in found.notes)


def test_a_size_measured_on_only_one_device_is_omitted_and_reported():
    run_set = a_run()
    run_set = run_set.model_copy(update={"runs": (*run_set.runs, process("mlp", 4096, "cpu", 0))})

    found = decide(run_set, TERMS, CLUSTER)

    assert list(sizes_of(found)) == [1, 16, 256]
    assert "mlp at 4096: no round has times of both devices, so nothing is decided" in found.notes


@pytest.mark.parametrize(
    ("run_set", "message"),
    [
        (
            a_run(("cpu",)),
            "a decision needs times of cpu and gpu, but the run measured cpu.\nOn a machine with a GPU, run:\n"
            "tune-policies bench run .*@.* --device cpu --device gpu --cpus 1 --output gpu-run.json$",
        ),
        (
            a_run(("cpu",), devices=(DeviceFound(device="gpu", why_missing="no node has a GPU"),)),
            "but the run measured cpu; gpu was not measured: no node has a GPU",
        ),
        (a_run(runs=()), "but the run measured nothing"),
        (
            a_run(
                runs=(process("mlp", 1, "cpu", 0), process("mlp", 2, "gpu", 0)),
                failures=(
                    Failure(
                        configuration=Configuration(workload="mlp", size=1, device="gpu"),
                        round=0,
                        kind="raised",
                        message="it raised",
                    ),
                ),
            ),
            r"no size has times of both cpu and gpu: mlp\[1\] on gpu, round 1: it raised",
        ),
    ],
    ids=["one device", "a device is missing", "nothing", "no size of both"],
)
def test_a_run_without_a_decision_raises_an_error_with_the_reason(run_set, message):
    with pytest.raises(UndecidedError, match=message):
        decide(run_set, TERMS, CLUSTER)


def test_a_gpu_that_was_not_measured_is_refused():
    with pytest.raises(InvalidResourcesError, match=r"nothing was measured on 'gpu@0.5'.* \(measured GPUs: gpu\)"):
        decide(a_run(), Terms(steps_per_trial=1, gpu="gpu@0.5"), CLUSTER)


def test_the_table_has_the_verdict_the_times_the_costs_and_their_conditions():
    console = Console(width=200)
    with console.capture() as captured:
        print_decision(decide(a_run(), TERMS, CLUSTER, PRICES).decision, console)
    text = captured.get()

    assert (
        "mlp, in trials of 1,000 steps: the GPU is faster from size 256 on, and the CPU up to size 16; "
        "measured from 1 to 256" in text
    )
    assert "mlp, by cost: no crossover: the GPU is not clearly cheaper at any size; measured from 1 to 256" in text
    assert "measured on 2026-06-01 with a CPU and A10G" in text
    assert "prices of 2026-05-01, from by hand" in text
    assert "concurrent trials: 4 on CPUs, 4 on GPUs" in text
    assert "a trial is charged for 0.25 of c on CPUs, or 1 of g on a GPU" in text


@pytest.mark.parametrize(
    ("answers", "above", "at", "text"),
    [
        (["CPU", "CPU"], 2, None, "no crossover: the GPU is not clearly faster at any size; measured from 1 to 2"),
        (["GPU", "GPU"], None, 1, "no crossover: the GPU is faster at all sizes; measured from 1 to 2"),
        (["GPU"], None, 1, "no crossover: the GPU is faster at all sizes; measured at 1 only"),
        (["CPU", "same", "GPU"], 2, 4, "the GPU is faster from size 4 on, but not clearly at 2; measured from 1 to 4"),
        (
            ["CPU", "CPU", "GPU"],
            2,
            4,
            "the GPU is faster from size 4 on, and the CPU up to size 2; measured from 1 to 4",
        ),
        (
            ["CPU", "GPU", "GPU", "ambiguous", "GPU"],
            *(8, 16),
            "no single crossover, because the answer changes back (1: CPU, 2: GPU, 8: ambiguous, 16: GPU); measured "
            "from 1 to 16",
        ),
    ],
    ids=["never", "always", "one size", "once", "once, above the CPU", "it changes back"],
)
def test_the_gpu_is_the_answer_for_every_size_from_the_crossover_on(answers, above, at, text):
    by_size = {2**power: answer for power, answer in enumerate(answers)}

    assert crossover(by_size) == (above, at)
    assert describe(by_size) == text


def decided_with_nodes(capacity=CLUSTER, prices=PRICES, packing=None, **fields):
    terms = Terms(steps_per_trial=1000, nodes=NodesQuestion(**{"num_trials": 100, "node_cpus": 16} | fields))
    return sizes_of(decide(a_run(), terms, capacity, prices, packing))[256]


def test_a_decision_contains_the_number_of_cpu_nodes_that_are_as_fast_as_one_gpu():
    size = decided_with_nodes()
    found = size.gpu_or_nodes

    # The GPU runs 100 trials of 6.256 s one after the other. In this time, a node runs 23 rounds of 4 trials.
    assert found.gpu_s == pytest.approx(100 * size.gpu.trial_s)
    assert (found.trials_per_node, found.num_nodes, found.low, found.high) == (4, 2, 2, 2)
    assert found.nodes_s == pytest.approx(13 * size.cpu.trial_s)


def test_cpu_nodes_are_paid_for_until_the_last_trial_has_ended():
    found = decided_with_nodes().gpu_or_nodes

    assert found.gpu_cost == pytest.approx(2.0 * found.gpu_s / 3600)
    assert found.nodes_cost == pytest.approx(2 * 0.8 * found.nodes_s / 3600)
    # 25 nodes at 0.8 per hour for 26.6 s cost less than the GPU at 2.0 per hour for 625 s.
    assert found.as_cheap_up_to == 25


def test_packing_shortens_the_time_of_all_trials_on_the_gpu():
    found = decided_with_nodes(packing=packed_on(UNREAD_GPU)).gpu_or_nodes

    # With 1.5 times the throughput, the GPU runs 100 trials in 417 s. Meanwhile, a node runs 15 rounds of 4 trials.
    assert (found.gpu_s, found.num_nodes) == (pytest.approx(100 * 6.256 / 1.5, rel=0.01), 2)
    assert decided_with_nodes().gpu_or_nodes.gpu_s > found.gpu_s


def test_the_gpu_that_is_compared_with_cpu_nodes_is_charged_for_the_cpus_of_all_trials_that_share_it():
    cluster = ClusterCapacity.of(gpu_node("a", gpus=1, cpus=64, gpu_memory_gib=64, accelerator_type="A10G"))
    size = decided_with_nodes(cluster, PARTS, packed_on(UNREAD_GPU))
    found = size.gpu_or_nodes

    assert found.gpu_s == pytest.approx(100 * size.gpu.trial_s / 3)
    assert found.gpu_cost == pytest.approx((0.9 + 32 * 0.05) * found.gpu_s / 3600)


def test_cpu_nodes_have_the_size_of_the_clusters_largest_node_without_gpus():
    cluster = ClusterCapacity.of(NODE, gpu_node("b", gpus=0, cpus=8), gpu_node("c", gpus=0, cpus=4))

    assert decided_with_nodes(cluster, node_cpus=None).gpu_or_nodes.node_cpus == 8
    with pytest.raises(InvalidResourcesError, match=r"no node without GPUs, .* Pass --node-cpus"):
        decided_with_nodes(node_cpus=None)


def test_a_cpu_node_without_room_for_a_trial_is_rejected():
    with pytest.raises(
        InvalidResourcesError, match=r"a node with 2 CPUs is too small .* with 4 CPUs\. Pass --node-cpus 4"
    ):
        decided_with_nodes(node_cpus=2)


def with_cpus(cpus, num_threads, **changes):
    """Return a run whose trials reserved ``cpus`` CPUs and had ``num_threads`` threads."""
    run = a_run(settings=Settings(sizes={"mlp": (1, 16, 256)}, devices=("cpu", "gpu"), cpus=cpus), **changes)
    return run.model_copy(
        update={"runs": tuple(each.model_copy(update={"num_threads": num_threads}) for each in run.runs)}
    )


@pytest.mark.parametrize(("cpus", "num_threads", "at_once"), [(0.5, 1, 32), (2.5, 2, 6)])
def test_a_trial_pays_for_the_cpus_that_it_reserves_and_not_for_its_threads(cpus, num_threads, at_once):
    found = sizes_of(decide(with_cpus(cpus, num_threads), TERMS, CLUSTER, PRICES))[256].cpu

    # A machine with 16 CPUs costs 0.80 per hour.
    cost = found.trial_s / 3600 * 0.8 * cpus / 16
    assert (found.num_threads, found.at_once, found.cost_per_trial) == (num_threads, at_once, pytest.approx(cost))


@pytest.mark.parametrize(("cpus", "num_threads", "trials_per_node"), [(0.1, 1, 30), (2.5, 2, 1)])
def test_a_cpu_node_runs_as_many_trials_as_its_cpus_can_be_reserved_for(cpus, num_threads, trials_per_node):
    terms = TERMS.model_copy(update={"nodes": NodesQuestion(num_trials=100, node_cpus=3)})

    found = sizes_of(decide(with_cpus(cpus, num_threads), terms, CLUSTER))[256].gpu_or_nodes

    assert found.trials_per_node == trials_per_node


def test_the_cpus_of_a_node_that_is_too_small_for_a_fractional_trial_are_rounded_up_in_the_advice():
    terms = TERMS.model_copy(update={"nodes": NodesQuestion(num_trials=100, node_cpus=2)})

    with pytest.raises(InvalidResourcesError, match=r"measured with 2\.5 CPUs\. Pass --node-cpus 3 or more"):
        decide(with_cpus(2.5, 2), terms, CLUSTER)


@pytest.mark.parametrize("num_trials", [0, 100_001])
def test_a_number_of_trials_out_of_bounds_is_rejected(num_trials):
    with pytest.raises(InvalidResourcesError, match="num_trials"):
        NodesQuestion(num_trials=num_trials)


def test_no_number_of_cpu_nodes_is_as_fast_if_one_trial_takes_longer_than_all_trials_on_the_gpu():
    found = Nodes(num_trials=3, node_cpus=4, trial_cpus=4, price=1.0).against_gpu(
        cpu_trial_s=50.0, gpu_trial_s=10.0, speedups=(2.5, 5.0), gpu_price=6.0
    )

    # At one end of the interval, a trial takes 25 s on a node, so three nodes finish within the GPU's 30 s.
    assert (found.num_nodes, found.low, found.high, found.nodes_s, found.nodes_cost) == (None, 3, None, None, None)
    # The GPU costs 6 * 30 / 3600, and three nodes cost 3 * 50 / 3600.
    assert found.as_cheap_up_to == 3


@settings(max_examples=60)
@given(
    num_trials=st.integers(1, 300),
    per_node=st.integers(1, 8),
    cpu_trial_s=st.integers(1, 100),
    gpu_trial_s=st.integers(1, 100),
    price=st.integers(1, 20),
)
def test_the_crossover_in_nodes_equals_the_result_of_trying_all_numbers(
    num_trials, per_node, cpu_trial_s, gpu_trial_s, price
):
    found = Nodes(num_trials, per_node, 1, float(price)).against_gpu(
        cpu_trial_s=cpu_trial_s, gpu_trial_s=gpu_trial_s, speedups=(1.0, 1.0), gpu_price=10.0
    )
    takes_s = {nodes: -(-num_trials // (nodes * per_node)) * cpu_trial_s for nodes in range(1, num_trials + 1)}
    useful = -(-num_trials // per_node)

    fast = [nodes for nodes, seconds in takes_s.items() if seconds <= num_trials * gpu_trial_s]
    cheap = [nodes for nodes in range(1, useful + 1) if nodes * price * takes_s[nodes] <= 10 * num_trials * gpu_trial_s]
    assert found.num_nodes == min(fast, default=None)
    assert found.as_cheap_up_to == max(cheap, default=None)


def test_the_table_of_nodes_has_the_crossover_and_the_cost_of_both():
    console = Console(width=200)
    with console.capture() as captured:
        print_decision(
            decide(
                a_run(),
                TERMS.model_copy(update={"nodes": NodesQuestion(num_trials=100, node_cpus=16)}),
                CLUSTER,
                PRICES,
            ).decision,
            console,
        )
    text = captured.get()

    assert "100 trials on 1 GPU, or on the minimum number of 16-CPU nodes that finish at least as early" in text
    assert "Maximum number of nodes for the same cost as the GPU" in text
