import pytest

from tune_policies.benchmarks.record.packing_record import ThroughputRecord, ThroughputSample, stops_paying_at
from tune_policies.benchmarks.report.tables import throughput_lines


def sample(mode, trials_per_gpu, trials_per_hour, losses=()):
    num_trials = 2 * trials_per_gpu
    return ThroughputSample(
        workload="mlp",
        mode=mode,
        trials_per_gpu=trials_per_gpu,
        num_trials=num_trials,
        seconds=num_trials * 3600 / trials_per_hour,
        trial_seconds=(),
        losses=losses,
    )


def record(*samples):
    return ThroughputRecord(gpu="A100", machine="", command="", samples=samples, plans={})


def test_a_rate_is_the_median_of_its_runs():
    runs = record(*(sample("packed", 4, rate) for rate in (100, 140, 110)))

    (rate,) = runs.rates("mlp").values()
    assert rate.median == pytest.approx(110)


def test_a_rate_is_compared_with_one_trial_at_a_time():
    runs = record(sample("alone", 1, 50), sample("plan", 8, 400))

    assert runs.speedup("mlp", "plan", 8) == pytest.approx(8)


def test_rates_are_not_compared_without_a_run_of_one_trial_at_a_time():
    assert record(sample("plan", 8, 400)).speedup("mlp", "plan", 8) is None


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({1: 100, 2: 190, 4: 200, 8: 201}, 2),
        ({1: 100, 2: 190, 4: 300}, None),
        ({1: 100, 2: 90, 4: 250, 8: 240}, 4),
        ({1: 100, 2: 109}, 1),
        ({1: 100, 4: 122}, None),
        ({1: 100, 4: 120}, 1),
        ({1: 100}, None),
    ],
    ids=[
        "from 2 on no doubling brings a tenth",
        "the largest number still pays",
        "a dip before the top is no end",
        "a second trial brings less than a tenth",
        "two doublings bring a tenth each",
        "two doublings bring less",
        "a single number",
    ],
)
def test_packing_no_longer_pays_off_if_doubling_the_trials_raises_the_rate_by_less_than_a_tenth(rates, expected):
    assert stops_paying_at(rates) == expected


def test_runs_under_mps_do_not_affect_the_number_of_trials_up_to_which_time_slicing_pays_off():
    runs = record(sample("alone", 1, 100), sample("packed", 2, 101), sample("packed with mps", 4, 400))

    assert runs.stops_paying_at("mlp") == 1


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ([sample("alone", 1, 100)], "mlp: it is not known whether more trials per GPU pay off"),
        ([sample("alone", 1, 100), sample("plan", 1, 98)], "mlp: it is not known whether more trials per GPU pay off"),
        (
            [sample("alone", 1, 100), sample("packed", 2, 190)],
            "mlp: up to the largest measured number, more trials per GPU paid off",
        ),
    ],
    ids=["all other runs failed", "the plan has one trial too", "two numbers"],
)
def test_one_number_of_trials_does_not_show_whether_more_pay_off(samples, sentence):
    (line,) = throughput_lines(record(*samples))

    assert line.startswith(sentence)


def test_losses_are_compared_seed_by_seed():
    runs = record(sample("alone", 1, 50, losses=(2.0, 4.0)), sample("packed", 2, 90, losses=(2.0, 4.4, 9.0)))

    assert runs.largest_difference_of_losses("mlp") == pytest.approx(0.4 / 4.2)


def test_a_failed_run_is_recorded_separately():
    runs = record(sample("alone", 1, 50)).with_failure("mlp, plan, 8 at once: a trial failed")

    assert (len(runs.samples), runs.failures) == (1, ("mlp, plan, 8 at once: a trial failed",))


def test_a_record_round_trips_through_json_and_json_of_earlier_versions_can_be_loaded():
    runs = record(sample("alone", 1, 50, losses=(2.0,)))

    assert ThroughputRecord.from_json(runs.to_json()) == runs
    assert ThroughputRecord.from_json(runs.to_json().replace('"mode"', '"arm"')) == runs


@pytest.mark.parametrize(
    ("gpu", "accelerator_type", "may_be"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100", True),
        ("NVIDIA A100-SXM4-40GB", "A100-40G", True),
        ("NVIDIA GeForce RTX 3090", "G", True),
        ("AMD Instinct MI300X OAM", "AMD-Instinct-MI300X-OAM", True),
        ("NVIDIA L40S", "L4", False),
        ("NVIDIA GeForce RTX 3060", "GeForce-RTX-3060", True),
        ("NVIDIA GeForce RTX 3060", "GeForce-RTX-4090", False),
        ("AMD Instinct MI210", "AMD-Instinct-MI300X-OAM", False),
        ("NVIDIA GH200 480GB", "H200", False),
    ],
)
def test_a_record_matches_a_device_type_that_is_part_of_the_name_of_its_gpu(gpu, accelerator_type, may_be):
    record = ThroughputRecord(gpu=gpu, machine="", command="", plans={})

    assert record.may_be_of(accelerator_type) is may_be
