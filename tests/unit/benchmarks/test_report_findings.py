from pathlib import Path

import pytest

from tests.reports import a_decision
from tests.run_sets import a_run_set
from tune_policies.benchmarks.compare.compare_devices import Verdict
from tune_policies.benchmarks.compare.time_ratio import Comparison, Outcome
from tune_policies.benchmarks.record.run_set import Phase
from tune_policies.benchmarks.record.summary import sentence
from tune_policies.benchmarks.report.content import doubts_of_all, find, summarise

SIZES = (16, 64, 256, 1024)
RATIOS = {"cpu": 0.5, "gpu": 3.0, "same": 1.0, "unsure": 1.04}
OUTCOMES = {"cpu": Outcome.FIRST, "gpu": Outcome.SECOND, "same": Outcome.SAME, "unsure": Outcome.AMBIGUOUS}


def verdict(size, answer, *, workload="mlp", device="gpu", phase=Phase.TRANSFERS, reasons=()):
    ratio = RATIOS[answer]
    comparison = Comparison(
        ratio=ratio, low=ratio * 0.95, high=ratio * 1.05, outcome=OUTCOMES[answer], num_rounds=5, reasons=reasons
    )
    return Verdict(workload=workload, size=size, phase=phase, first="cpu", second=device, comparison=comparison)


def finding(*answers, decision=None, **fields):
    run_set = a_run_set(workloads=("mlp",), sizes=SIZES, num_rounds=1)
    verdicts = [verdict(size, answer, **fields) for size, answer in zip(SIZES, answers, strict=False)]
    (found,) = find(run_set, {verdicts[0].phase: verdicts}, decision)
    return found


@pytest.mark.parametrize(
    ("answers", "kind", "badge"),
    [
        (["cpu", "cpu", "gpu", "gpu"], "gain", "GPU from 256"),
        (["cpu", "unsure", "unsure", "gpu"], "gain", "GPU from 1024"),
        (["gpu"] * 4, "gain", "GPU"),
        (["cpu"] * 4, "stay", "CPU"),
        (["gpu", "gpu", "cpu", "cpu"], "stay", "CPU from 256"),
        (["same"] * 4, "same", "the same"),
        (["cpu", "same", "same", "same"], "same", "the same from 64"),
        (["unsure"] * 4, "ambiguous", "ambiguous"),
        (["cpu", "gpu", "cpu", "gpu"], "depends", "CPU or GPU, depending on the size"),
        (["gpu", "unsure", "gpu", "gpu"], "gain", "GPU from 256"),
        (["unsure", "cpu", "unsure", "gpu"], "gain", "GPU from 1024"),
        (["same", "gpu", "same", "same"], "depends", "CPU or GPU, depending on the size"),
        (["gpu"], "gain", "GPU"),
    ],
)
def test_a_badge_contains_the_faster_device_and_the_size_from_which_it_is_faster(answers, kind, badge):
    found = finding(*answers)

    assert (found.kind, found.badge) == (kind, badge)


def test_a_finding_contains_the_factor_its_interval_and_the_largest_measured_size():
    assert finding("cpu", "unsure", "gpu", "gpu").sentences == (
        "GPU at sizes 256 to 1024: 3.0\N{MULTIPLICATION SIGN} (2.8 to 3.2) as fast as CPU at 256, "
        "3.0\N{MULTIPLICATION SIGN} (2.8 to 3.2) at 1024.",
        "Ambiguous at size 64: GPU is 1.04\N{MULTIPLICATION SIGN} (0.99 to 1.09) as fast as CPU.",
        "CPU at size 16: 2.0\N{MULTIPLICATION SIGN} (1.90 to 2.1) as fast as GPU.",
    )


def test_an_ambiguous_finding_has_a_reason():
    verdicts = {Phase.TRANSFERS: [verdict(16, "gpu"), verdict(64, "unsure", reasons=("two rounds are too few",))]}

    (found,) = find(a_run_set(workloads=("mlp",), sizes=SIZES, num_rounds=1), verdicts)
    assert found.sentences[1] == "Two rounds are too few."


def test_a_reason_shared_by_several_sizes_is_given_once():
    unsure = [verdict(size, answer, reasons=("it was loud",)) for size, answer in ((64, "unsure"), (256, "gpu"))]
    verdicts = {Phase.TRANSFERS: [verdict(16, "cpu"), *unsure]}

    (found,) = find(a_run_set(workloads=("mlp",), sizes=SIZES, num_rounds=1), verdicts)
    assert found.sentences.count("It was loud.") == 1


def test_a_reason_shared_by_all_comparisons_is_given_once_for_the_run():
    verdicts = {Phase.COMPUTE: [verdict(size, "gpu", reasons=("it was loud", f"at {size}")) for size in SIZES]}

    assert doubts_of_all(verdicts) == ("it was loud",)
    (found,) = find(a_run_set(workloads=("mlp",), sizes=SIZES, num_rounds=1), verdicts)
    assert "It was loud." not in found.sentences


def test_a_workload_without_transfer_times_is_reported_with_another_phase():
    assert finding("gpu", phase=Phase.COMPUTE).sentences[-1] == (
        "No times with transfers were measured, so these are times of the phase compute."
    )


def test_each_further_device_has_a_finding_of_its_own():
    run_set = a_run_set(workloads=("mlp",), sizes=SIZES, num_rounds=1)
    verdicts = {Phase.TRANSFERS: [verdict(16, "gpu"), verdict(16, "cpu", device="gpu@0.25")]}

    assert [(each.workload, each.badge) for each in find(run_set, verdicts)] == [
        ("mlp, GPU", "GPU"),
        ("mlp, gpu@0.25", "CPU"),
    ]


def test_a_decision_adds_the_results_for_whole_trials_and_their_cost():
    assert finding("gpu", "gpu", decision=a_decision()).sentences[-2:] == (
        "Over a whole trial of 1,000 steps: the GPU is faster from size 1024 on, and the CPU up to size 256; "
        "measured from 16 to 4096.",
        "By cost, at prices of 2026-01-01: the GPU is cheaper from size 4096 on, and the CPU up to size 1024; "
        "measured from 16 to 4096.",
    )


def test_the_decision_is_added_to_the_finding_of_its_gpu():
    verdicts = {Phase.TRANSFERS: [verdict(16, "gpu", device="TPU"), verdict(16, "gpu")]}

    tpu, gpu = find(a_run_set(workloads=("mlp",), sizes=SIZES, num_rounds=1), verdicts, a_decision())
    assert ["whole trial" in " ".join(each.sentences) for each in (tpu, gpu)] == [False, True]


def test_a_device_whose_processes_all_failed_is_mentioned_in_the_finding():
    whole = a_run_set(workloads=("mlp",), num_rounds=2)
    on_cpu = tuple(run for run in whole.runs if run.configuration.device == "cpu")

    (found,) = find(whole.model_copy(update={"runs": on_cpu}), {})
    assert found.sentences[1:] == ("On GPU: ValueError: <no> data.",)


def test_a_single_device_is_not_compared():
    (found,) = find(a_run_set(workloads=("mlp",), devices=("cpu",), num_rounds=1, has_failure=False), {})

    assert found.sentences == (
        "Only CPU was measured, so there is nothing to compare it with. On a machine with a GPU, run: "
        "tune-policies bench run mlp@16,64,256,1024,4096 --device cpu --device gpu --cpus 1 --output gpu-run.json",
    )


def test_the_command_for_a_gpu_names_the_new_file_after_the_record():
    run_set = a_run_set(workloads=("mlp",), devices=("cpu",), num_rounds=1, has_failure=False)

    (found,) = find(run_set, {}, file=Path("cpu-small.json"))

    assert found.sentences[0].endswith("--output gpu-small.json")


def test_devices_of_different_sizes_are_not_compared():
    run_set = a_run_set(workloads=("mlp",), sizes=(16, 64), num_rounds=1, has_failure=False)
    apart = tuple(run for run in run_set.runs if (run.configuration.device == "gpu") == (run.configuration.size == 64))

    (found,) = find(run_set.model_copy(update={"runs": apart}), {})
    assert found.sentences == ("CPU and GPU have no size in common, so nothing can be compared.",)


def test_a_workload_whose_processes_all_failed_is_reported_with_its_error():
    whole = a_run_set(workloads=("mlp",))
    run_set = whole.model_copy(update={"runs": ()})

    (found,) = find(run_set, {})
    assert (found.badge, found.sentences) == ("not measured", ("On GPU: ValueError: <no> data.",))
    assert summarise(run_set, [found]) == "Nothing was measured, because every process failed."


def test_an_empty_run_is_reported_as_empty():
    run_set = a_run_set().model_copy(update={"runs": (), "failures": ()})

    assert summarise(run_set, find(run_set, {})) == "Nothing was measured."


def test_the_summary_lists_few_workloads_and_counts_many():
    few = [finding("gpu"), finding("cpu")._replace(workload="cnn")]

    assert summarise(a_run_set(num_rounds=1), few) == "mlp: GPU; cnn: CPU."
    assert summarise(a_run_set(num_rounds=1), few * 3) == ("GPU: 3 of 6; CPU: 3 of 6.")


def test_the_cpu_comes_first_in_any_order_of_the_devices():
    assert a_run_set(devices=("gpu", "cpu"), num_rounds=1).measured_devices == ("cpu", "gpu")
    assert a_run_set(devices=("gpu",), num_rounds=1).measured_devices == ("gpu",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("the GPU is faster", "The GPU is faster.", id="a word"),
        pytest.param("my_steps:net[64] on cpu", "my_steps:net[64] on cpu.", id="the name of a workload"),
        pytest.param("unsure: why?", "Unsure: why?", id="a word with a colon, and its own end"),
        pytest.param("", ".", id="no text"),
    ],
)
def test_a_sentence_begins_with_a_capital_letter_unless_it_begins_with_a_name(text, expected):
    assert sentence(text) == expected
