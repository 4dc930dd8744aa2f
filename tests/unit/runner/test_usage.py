"""Tests of GPU memory records that are read from the folder of a run and merged, and of their table."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.unit.runner.usage_files import GIB, TORCH_OOM, failed, report, result, run_of, used, write
from tune_policies import (
    InvalidResourcesError,
    load_usage,
)
from tune_policies.trainers.usage.gpu_memory_records import (
    ASSUMED,
    GpuMemoryUsage,
    MemoryFailure,
    RunUsage,
    TrialGpuMemory,
    merge_usages,
    read_usage,
    worker_file,
)
from tune_policies.trainers.usage.load_usage import LoadedUsage
from tune_policies.trainers.usage.process_usage import ProcessUsage
from tune_policies.trainers.usage.resource_usage import (
    STARTING,
    IdleHours,
    RaisedMemory,
    ResourceHours,
    ResourceUsage,
    SlotHours,
    TrialCounts,
)
from tune_policies.trainers.usage.usage_report import advice_of_run, summary_view, usage_view

FULL = used(
    7,
    limit_bytes={"torch": 3 * GIB, "torch.xpu": GIB},
    not_enforceable=("numba", "xgboost"),
    warnings=("no limit: none", "left over"),
    sources={"process_bytes": "not known: no GPU", "share_kept": ASSUMED},
)


@pytest.mark.parametrize("usage", [FULL, used(7, gpus=1)], ids=["a fraction", "a whole GPU"])
def test_a_result_has_all_keys_with_numbers_or_texts_and_is_read_unchanged(usage):
    written = usage.to_result()

    assert written.keys() == GpuMemoryUsage.model_fields.keys()
    assert all(each is None or isinstance(each, int | float | str) for each in written.values())
    assert GpuMemoryUsage.from_dict(json.loads(json.dumps(written))) == usage


def test_records_with_lists_and_mappings_are_read():
    """Files, errors and results of earlier versions contain records of this form."""
    assert GpuMemoryUsage.from_json(FULL.to_json()) == FULL


def test_a_trials_record_has_the_maximum_of_its_results_and_errors(tmp_path):
    note = "RuntimeError: CUDA out of memory\n" + report(used(7, num_ooms=1))
    write(tmp_path, "a", result(used(3)), result(used(5)), result(used(4)))
    write(tmp_path, "b", result(used(2)), error=note)
    write(tmp_path, "c")

    trials = read_usage(tmp_path).trials

    assert [trial.name for trial in trials] == ["a", "b", "c"]
    assert [trial.usage and trial.usage.peak_reserved_bytes for trial in trials] == [5 * GIB, 7 * GIB, None]
    assert trials[1].usage.num_ooms == 1


def test_the_record_in_an_error_of_an_earlier_version_is_read(tmp_path):
    write(
        tmp_path,
        "a",
        error=f"RuntimeError: CUDA out of memory\ngpu_memory: {json.dumps(used(7).model_dump(mode='json'))}\n",
    )

    (trial,) = read_usage(tmp_path).trials

    assert trial.usage.peak_reserved_bytes == 7 * GIB


def noted(*usages):
    return "".join(f"{report(usage)}\n" for usage in usages)


SMALL = {"gpus": 0.25, "share_gib": 4, "limit_bytes": {"torch": 3 * GIB}}


def test_a_trial_retried_with_a_larger_fraction_has_a_record_per_fraction(tmp_path):
    ran_out = used(4.1, **SMALL, num_ooms=1, share_kept=False)
    write(tmp_path, "a", result(used(2, **SMALL)), result(used(5, share_kept=True)), error=noted(ran_out))

    run = read_usage(tmp_path)

    ((usage, (before,)),) = [(trial.usage, trial.of_smaller_shares) for trial in run.trials]
    assert usage == used(5, share_kept=True)
    assert (before.num_ooms, before.peak_reserved_bytes, before.share_bytes) == (1, int(4.1 * GIB), 4 * GIB)
    assert advice_of_run(run) == [
        "the peak was 5.0 of 8.0 GiB (5.8 GiB with overhead), so 2 trials per GPU is right",
        "1 trial ran out of memory with 4.0 GiB, but not with 8.0 GiB: a",
        'to run without retries, write GpuMemoryPolicy(gpu_memory="6.5GiB"), with which 2 trials fit on a GPU of '
        "16 GiB",
        "1 trial exceeded the GPU fraction: a",
    ]


@pytest.mark.parametrize(
    ("failed_with", "finished_with", "value"),
    [
        (0.5, 1, "GpuPolicy()"),
        (0.3333, 0.5, "GpuPolicy(gpus=0.5), with which 2 trials fit on a GPU"),
        (0.25, 0.5, "GpuPolicy(gpus=0.5), with which 2 trials fit on a GPU"),
    ],
)
def test_after_retries_on_a_simulated_gpu_the_value_is_the_fraction_that_was_enough(failed_with, finished_with, value):
    """The memory of a simulated GPU is not measured, and an error contains only what was too little."""
    trial = TrialGpuMemory(
        name="a",
        usage=GpuMemoryUsage(gpus=finished_with),
        of_smaller_shares=(GpuMemoryUsage(gpus=failed_with, num_ooms=1),),
        failures=(MemoryFailure(kind="accelerator", needed_bytes=12 * GIB, device_bytes=40 * GIB),),
    )

    assert advice_of_run(RunUsage(trials=(trial,)))[-1] == f"to run without retries, write {value}"


def test_fractions_of_unknown_size_are_shown_in_gpus(tmp_path):
    write(tmp_path, "a", result(GpuMemoryUsage(gpus=0.5)), error=noted(GpuMemoryUsage(gpus=0.25, num_ooms=1)))

    assert advice_of_run(read_usage(tmp_path)) == [
        "1 trial ran out of memory with 0.25 GPU, but not with 0.5 GPU: a",
        "to run without retries, write GpuPolicy(gpus=0.5), with which 2 trials fit on a GPU",
    ]


def test_a_trial_that_was_retried_with_more_host_memory_gets_the_value_that_it_used(tmp_path):
    """Without a PolicyCallback, the results show the slots and the peak of the trial."""
    process = {"elapsed_s": 1, "cpus": 1, "cpu_s": 1}
    results = [
        {"slot": f"1 CPU, {reserved} of host memory", "usage": {**process, "host_memory_bytes": peak}}
        for reserved, peak in (("200 MiB", GIB // 5), ("400 MiB", GIB // 3))
    ]
    write(tmp_path, "a", *(f"{json.dumps(result)}\n" for result in results), error=failed("MemoryError"))

    assert advice_of_run(read_usage(tmp_path))[-1] == (
        "1 of 1 trial ran out of host memory, and more memory was enough. To run without retries, write "
        'memory="376MiB" in the policy, such as CpuPolicy(memory="376MiB")'
    )


def test_columns_in_which_nothing_is_known_are_omitted_with_the_reason():
    source = {"process_bytes": "unknown, because NVIDIA's driver cannot be queried"}
    lines = shown(run_of(GpuMemoryUsage(gpus=0.5, num_ooms=2, sources=source), None))

    assert lines[1].split() == ["Trial", "Fraction", "Limit", "OOMs"]
    assert [line.split()[-1] for line in lines[3:5]] == ["2", "0"]
    assert lines[5:7] == [
        "- not known for any trial: Peak, Process (because NVIDIA's driver cannot be",
        "queried)",
    ]


def test_the_table_of_a_plain_run_counts_the_errors_in_error_files(tmp_path):
    write(tmp_path, "a", json.dumps({"loss": 1}), error=failed(TORCH_OOM, "MemoryError"))
    write(tmp_path, "b", json.dumps({"loss": 1}))

    lines = shown(read_usage(tmp_path))

    assert [line.split() for line in lines[1:5]] == [["Trial", "OOMs"], ["─" * 12], ["a", "2"], ["b", "0"]]


def test_without_usage_and_errors_there_is_no_table(tmp_path):
    write(tmp_path, "a", json.dumps({"loss": 1}))

    assert shown(read_usage(tmp_path))[0].startswith("- no trial reported its GPU memory")


def test_the_table_counts_the_oom_errors_of_all_fractions(tmp_path):
    write(tmp_path, "a", result(used(5)), error=noted(used(4.1, **SMALL, num_ooms=2)))

    assert shown(read_usage(tmp_path))[3].split()[-1] == "2"


def test_the_oom_errors_of_a_trials_processes_are_added_up(tmp_path):
    events = [(7, 1), (7, 2), (8, 1)]
    write(tmp_path, "a", error=noted(*(used(3, pid=pid, num_ooms=ooms) for pid, ooms in events)))

    assert read_usage(tmp_path).trials[0].usage.num_ooms == 3


def test_usage_contains_the_cpu_time_and_host_memory_of_each_trial(tmp_path):
    process = ProcessUsage(elapsed_s=10, cpus=2, cpu_s=5, host_memory_bytes=GIB)
    before = process.model_copy(update={"host_memory_bytes": 2 * GIB})
    write(tmp_path, "a", *(json.dumps({"usage": each.model_dump()}) + "\n" for each in (before, process)))

    (trial,) = load_usage(tmp_path).trials

    assert (trial.process, trial.host_memory_bytes) == (process, 2 * GIB)


def test_the_table_of_trials_without_gpus_has_at_most_20_rows():
    process = ProcessUsage(elapsed_s=10, cpus=2, cpu_s=5, host_memory_bytes=GIB)
    trials = tuple(TrialGpuMemory(name=f"t{number:02}", process=process) for number in range(23))

    lines = shown(RunUsage(trials=trials))

    assert lines[1].split("  ")[0] == "Trial"
    assert lines[3].split() == ["t00", "0.5", "of", "2", "1", "GiB"]
    assert (lines[22].split()[0], lines[23:]) == ("t19", ["… and 3 more"])


def test_the_table_of_trials_without_gpus_counts_trials_without_a_result():
    process = ProcessUsage(elapsed_s=10, cpus=2, cpu_s=5, host_memory_bytes=GIB)

    lines = shown(RunUsage(trials=(TrialGpuMemory(name="t0", process=process), TrialGpuMemory(name="t1"))))

    assert lines[0] == "2 trials"
    assert "… and 1 trial without a result" in lines


def test_the_summary_at_the_end_of_a_run_contains_the_advice_of_its_usage():
    idle = IdleHours(reason=STARTING, hours=6)
    record = ResourceUsage(
        resources=(ResourceHours(resource="CPU", total_hours=10, used_hours=4, idle=(idle,)),),
        slots=(SlotHours(slot="1 GPU", hours={"GPU": 1}),),
        raised=RaisedMemory(memory_bytes=GIB),
        trials=TrialCounts(num_finished=2),
    )
    usage = LoadedUsage(trials=run_of(used(6), used(7, num_ooms=1)).trials, resource_usage=record)
    views = []
    for view in (summary_view(usage, record), usage):
        console = Console(width=1000)
        with console.capture() as capture:
            console.print(view)
        views.append([line.rstrip() for line in capture.get().splitlines()])

    assert len(usage.advice) == 4
    assert [lines[-4:] for lines in views] == [[f"- {text}" for text in usage.advice]] * 2


@pytest.mark.parametrize("kind", ["path", "text", "results of Tune", "result of Train"])
def test_usage_is_loaded_from_results_or_their_folder(tmp_path, kind):
    folder = write(tmp_path, "a", result(used(3))).parent
    results = {
        "path": folder,
        "text": str(folder),
        "results of Tune": SimpleNamespace(experiment_path=str(folder)),
        "result of Train": SimpleNamespace(path=str(folder)),
    }

    assert load_usage(results[kind]).trials[0].usage.peak_reserved_bytes == 3 * GIB


@pytest.mark.parametrize("gpus", [1e-9, -1, 1.5])
def test_a_record_with_an_impossible_number_of_gpus_is_ignored(tmp_path, gpus):
    write(tmp_path, "a", json.dumps({"gpu_memory": {"gpus": gpus, "share_bytes": GIB, "peak_reserved_bytes": 5}}))

    assert read_usage(tmp_path).trials[0].usage is None


def test_truncated_lines_and_other_values_under_the_same_key_are_ignored(tmp_path):
    own = ['{"gpu_memory": "mine"}\n', '{"gpu_memory": {"used": 3}}\n', "[1]\n", "\n", "\x00\n"]
    write(tmp_path, "a", *own, result(used(3)), result(used(5))[:-30], error="out_of_memory: {")

    (trial,) = read_usage(tmp_path).trials

    assert trial.usage.peak_reserved_bytes == 3 * GIB


def test_the_folder_of_one_trial_can_be_read(tmp_path):
    folder = write(tmp_path, "a", result(used(3)))

    assert [trial.name for trial in read_usage(folder).trials] == ["a"]


def test_the_record_of_a_train_run_comes_from_its_reported_checkpoints(tmp_path):
    metrics = [{"gpu_memory": used(gib).model_dump(mode="json")} for gib in (3, 2)]
    snapshot = {"checkpoint_results": [{"metrics": each} for each in metrics]}
    (tmp_path / "checkpoint_manager_snapshot.json").write_text(json.dumps(snapshot))

    (trial,) = read_usage(tmp_path).trials

    assert (trial.name, trial.usage.peak_reserved_bytes) == (tmp_path.name, 3 * GIB)


def test_the_record_of_a_train_run_has_the_highest_peak_of_its_workers(tmp_path):
    for rank, usage in enumerate([used(2, pid=7), used(5, pid=8, num_ooms=1), used(3, pid=9)]):
        (tmp_path / worker_file(rank, usage.pid)).write_text(result(usage))

    (trial,) = read_usage(tmp_path).trials

    assert (trial.name, trial.usage.peak_reserved_bytes, trial.usage.num_ooms) == (tmp_path.name, 5 * GIB, 1)


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "is not a folder"), (".", "contains no results of Tune or Train")]
)
def test_a_folder_without_a_run_raises_an_error(tmp_path, name, message):
    with pytest.raises(InvalidResourcesError, match=message):
        read_usage(tmp_path / name)


@given(st.lists(st.builds(used, st.integers(0, 20), share_kept=st.sampled_from([True, False, None])), min_size=1))
def test_a_merged_record_has_the_highest_peak_and_reports_an_exceeded_limit(usages):
    whole = merge_usages(usages)

    assert whole.peak_reserved_bytes == max(usage.peak_reserved_bytes for usage in usages)
    assert (whole.share_kept is False) == any(usage.share_kept is False for usage in usages)


def shown(run):
    console = Console(width=80)
    with console.capture() as capture:
        console.print(usage_view(run))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_table_fits_80_columns_and_shows_unknown_values():
    full = used(2.9, limit_bytes={"torch": 7 * GIB}, process_bytes=3 * GIB, share_kept=True)
    bar = "#" * 15 + "." * 25

    lines = shown(run_of(full, GpuMemoryUsage(gpus=0.5, share_bytes=8 * GIB), None))

    assert max(map(len, lines)) <= 80
    assert lines[3].split() == ["t0", "8", "GiB", "7", "GiB", "2.9", "GiB", "3", "GiB", "yes", "0"]
    assert lines[4].split() == ["t1", "8", "GiB", "none", *["not", "known"] * 3, "0"]
    assert lines[5].split() == ["t2", *["-"] * 5, "0"]
    assert lines[7] == "Peaks relative to the GPU fractions"
    assert lines[10:] == [
        f"t0      {bar}   38%",
        "- the peak was 3.0 of 8.0 GiB (3.9 GiB with overhead), so LearningPolicy() would",
        "run 3 per GPU instead of 2",
    ]


def test_with_an_assumed_overhead_a_limit_is_shown_as_likely_kept():
    usage = used(2.9, share_kept=True, sources={"share_kept": ASSUMED})

    assert "likely" in shown(run_of(usage))[3]


def test_the_name_of_a_trial_is_not_interpreted_as_markup():
    lines = shown(RunUsage(trials=(TrialGpuMemory(name="t_[red]a[/]", usage=used(2)),)))

    assert [line.split()[0] for line in lines if "red" in line] == ["t_[red]a[/]"] * 2
