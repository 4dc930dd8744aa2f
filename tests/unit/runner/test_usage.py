"""Tests of GPU memory records that are read from the folder of a run and merged, and of the advice based on them."""

import json
import re
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tune_policies import (
    GpuPolicy,  # noqa: F401  # an advice contains it
    InvalidResourcesError,
    load_usage,
)
from tune_policies.oom import OutOfMemory, classify_oom_text
from tune_policies.plan.headroom import HEADROOM
from tune_policies.trainers.usage.gpu_memory_usage import (
    ASSUMED,
    GpuMemoryUsage,
    MemoryFailure,
    RunUsage,
    TrialGpuMemory,
    merge_usages,
    needed_bytes,
    read_usage,
    worker_file,
)
from tune_policies.trainers.usage.load_usage import LoadedUsage
from tune_policies.trainers.usage.oom_report import OomReport
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

GIB = 2**30


def report(usage):
    """Return the line that a process adds to an out-of-memory error."""
    return OomReport(out_of_memory=OutOfMemory(kind="accelerator"), gpu_memory=usage).to_note()


def used(gib, *, share_gib=8, gpus=0.5, **fields):
    whole = {"share_bytes": int(share_gib * GIB)} if gpus < 1 else {"device_bytes": 16 * GIB}
    return GpuMemoryUsage(gpus=gpus, peak_reserved_bytes=int(gib * GIB), **(whole | fields))


def run_of(*usages):
    return RunUsage(trials=tuple(TrialGpuMemory(name=f"t{i}", usage=usage) for i, usage in enumerate(usages)))


@pytest.mark.parametrize(
    ("usages", "advice"),
    [
        (
            [used(2), used(2.9)],
            "the peak was 2.9 of 8.0 GiB (3.7 GiB with overhead), so LearningPolicy() would run 3 per GPU instead of 2",
        ),
        ([used(6)], "the peak was 6.0 of 8.0 GiB (6.8 GiB with overhead), so 2 trials per GPU is right"),
        (
            [used(7)],
            "the peak was 7.0 of 8.0 GiB (7.8 GiB with overhead), so LearningPolicy() would run 1 per GPU instead of 2",
        ),
        (
            [used(2.9, gpus=1)],
            "the peak was 2.9 of 16.0 GiB (3.7 GiB with overhead), so LearningPolicy() would run 3 per GPU instead "
            "of 1",
        ),
        (
            [used(2, overhead_bytes=GIB)],
            "the peak was 3.0 of 8.0 GiB, so LearningPolicy() would run 4 per GPU instead of 2",
        ),
        (
            # The limit of a fraction subtracts 0.85 GiB, although the driver reported an overhead of 0.5 GiB.
            [used(1, gpus=1, overhead_bytes=GIB // 2, process_bytes=3 * GIB // 2)],
            "the peak was 1.5 of 16.0 GiB (1.8 GiB with overhead), so LearningPolicy() would run 7 per GPU instead "
            "of 1",
        ),
        (
            # The plan used a measured overhead of 0.5 GiB.
            [used(2, overhead_bytes=GIB // 2, limit_bytes={"torch": int(7.5 * GIB)})],
            "the peak was 2.5 of 8.0 GiB, so LearningPolicy() would run 5 per GPU instead of 2",
        ),
        (
            [used(2, process_bytes=4 * GIB)],
            "the peak was 4.0 of 8.0 GiB, so LearningPolicy() would run 3 per GPU instead of 2",
        ),
        (
            [used(15, gpus=1, num_ooms=1)],
            "1 of 1 trial ran out of memory with 16.0 GiB (a whole GPU), so use a GPU with more memory",
        ),
        (
            [None],
            "no trial reported its GPU memory. Only trials that have a GPU and run under a PolicyScheduler report it. "
            "With resources_per_trial alone, a trial's GPU memory is not limited",
        ),
    ],
)
def test_the_advice_depends_on_the_trial_with_the_highest_peak(usages, advice):
    assert advice_of_run(run_of(*usages)) == [advice]


@pytest.mark.parametrize(
    ("gpus", "policy"),
    [
        (0.5, "GpuPolicy(), with 1 per GPU instead of 2"),
        (0.25, 'GpuMemoryPolicy(gpu_memory="8GiB"), with 2 per GPU instead of 4'),
    ],
)
def test_after_out_of_memory_errors_the_advice_is_the_policy_to_write_and_the_cheaper_way(gpus, policy):
    """The GPU has 16 GiB."""
    share_gib = 16 * gpus
    small = {"gpus": gpus, "share_gib": share_gib}

    advice = advice_of_run(run_of(used(share_gib - 1, **small, num_ooms=1), *(used(1, **small) for _ in range(3))))

    assert advice == [
        f"1 of 4 trials ran out of memory with {share_gib:.1f} GiB, and needed at least {share_gib:.1f} GiB. How much "
        f"more is not known, so the value is a guess. Write {policy}",
        f"3 of 4 trials fit, so it may be cheaper to keep {1 / gpus:g} per GPU, and to retry the others with more "
        "memory: scheduler=OomRetryScheduler()",
    ]


def test_if_no_trial_fits_the_advice_is_a_guess_and_mentions_retries():
    """The GPU has 16 GiB."""
    advice = advice_of_run(run_of(*[used(3, gpus=0.25, share_gib=4, num_ooms=1)] * 3))

    assert advice == [
        "3 of 3 trials ran out of memory with 4.0 GiB, and needed at least 4.0 GiB. How much more is not known, so the "
        'value is a guess. Write GpuMemoryPolicy(gpu_memory="8GiB"), with 2 per GPU instead of 4, or retry such trials '
        "with more memory: scheduler=OomRetryScheduler()"
    ]


def test_the_value_to_write_is_known_from_one_error_if_no_peak_was_measured():
    failure = MemoryFailure(kind="accelerator", needed_bytes=13 * GIB)
    quarter = {"gpus": 0.25, "share_bytes": 10 * GIB, "device_bytes": 40 * GIB}
    ran_out, fits = GpuMemoryUsage(**quarter, num_ooms=1), GpuMemoryUsage(**quarter)
    trials = (
        TrialGpuMemory(name="a", usage=ran_out, failures=(failure,)),
        TrialGpuMemory(name="b", usage=fits),
        TrialGpuMemory(name="c", usage=fits),
    )

    first, *_ = advice_of_run(RunUsage(trials=trials))

    assert 'needed at least 13.0 GiB. Write GpuMemoryPolicy(gpu_memory="14.3GiB")' in first


@pytest.mark.parametrize(
    ("needed_gib", "policy"),
    [(9.5, 'GpuMemoryPolicy(gpu_memory="10.5GiB"), with which 1 trial fits'), (20, "which needs a larger GPU")],
)
def test_the_guess_is_at_least_what_the_errors_contain(needed_gib, policy):
    """The GPU has 16 GiB. A failed allocation was larger than the free memory of the fraction."""
    failure = MemoryFailure(kind="accelerator", needed_bytes=int(needed_gib * GIB))
    trial = TrialGpuMemory(name="t", usage=used(3, gpus=0.25, share_gib=4, num_ooms=1), failures=(failure,))

    (advice,) = advice_of_run(RunUsage(trials=(trial,)))

    assert f"and needed at least {needed_gib:.1f} GiB" in advice
    assert advice.endswith("or retry such trials with more memory: scheduler=OomRetryScheduler()")
    assert policy in advice


def test_problems_are_listed_with_their_trials():
    usage = used(7, share_kept=False, left_over_bytes=5, not_enforceable=("numba",), warnings=("no limit",))

    assert advice_of_run(run_of(usage, used(7)))[1:] == [
        "1 trial exceeded the GPU fraction: t0",
        "1 trial started with memory that an earlier trial had not released: t0",
        "the GPU memory of numba was not limited: t0",
        "no limit",
    ]


@given(st.lists(st.integers(1, 80 * GIB), min_size=1), st.sampled_from([0.1, 0.25, 0.5, 1]))
def test_the_advised_number_of_trials_fits_on_the_device_if_all_need_as_little_as_the_smallest(peaks, gpus):
    usages = [GpuMemoryUsage(gpus=gpus, device_bytes=80 * GIB, peak_reserved_bytes=peak) for peak in peaks]

    (line,) = advice_of_run(run_of(*usages))

    count = int(re.search(r"(\d+) (trials? )?per GPU", line)[1])
    assert count == 1 or count * min(peaks) * (1 + HEADROOM) <= 80 * GIB * 1.001


def test_without_a_peak_the_needed_memory_is_not_known():
    assert needed_bytes(GpuMemoryUsage(overhead_bytes=GIB)) is None


def write(folder, name, *results, error=None):
    trial = folder / f"{name}_2026-01-02_03-04-05"
    trial.mkdir(parents=True)
    (trial / "params.json").write_text("{}")
    (trial / "result.json").write_text("".join(line if isinstance(line, str) else json.dumps(line) for line in results))
    if error is not None:
        (trial / "error.txt").write_text(error)
    return trial


def result(usage):
    return json.dumps({"loss": 1, "gpu_memory": usage.to_result()}) + "\n"


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


def test_after_retries_on_a_simulated_gpu_the_value_follows_from_the_errors(tmp_path):
    """The memory of a simulated GPU is not measured, so only the errors contain amounts."""
    simulated = GpuMemoryUsage(gpus=0.5)
    failure = MemoryFailure(kind="accelerator", needed_bytes=14 * GIB, device_bytes=40 * GIB)
    trial = TrialGpuMemory(
        name="a",
        usage=simulated,
        of_smaller_shares=(GpuMemoryUsage(gpus=0.25, num_ooms=1),),
        failures=(failure,),
    )

    assert advice_of_run(RunUsage(trials=(trial,)))[-1] == (
        'to run without retries, write GpuMemoryPolicy(gpu_memory="15.4GiB"), with which 2 trials fit on a GPU of '
        "40 GiB"
    )


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


TORCH_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB "
    "of which 1.25 GiB is free. Including non-PyTorch memory, this process has 18.00 GiB memory in use."
)
NUMPY_OOM = (
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1073741824,) and "
    "data type float64"
)
RETRY = "retry such trials with more memory: scheduler=OomRetryScheduler()"


def failed(*errors):
    """Return the content of the file in which Tune writes the failures of a trial."""
    head = 'Failure # {} (occurred at 2026-01-02_03-04-05)\nTraceback (most recent call last):\n  File "a.py", line 1\n'
    return "".join(f"{head.format(number)}{error}\n\n" for number, error in enumerate(errors, 1))


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        pytest.param(
            failed(TORCH_OOM),
            "1 of 2 trials ran out of GPU memory and needed at least 20 GiB. Write "
            f'GpuMemoryPolicy(gpu_memory="22GiB"), with which 3 trials fit on a GPU of 79.2 GiB, or {RETRY}',
            id="GPU memory",
        ),
        pytest.param(
            failed("ValueError: x", NUMPY_OOM, "ValueError: y"),
            '1 of 2 trials ran out of host memory and needed at least 8 GiB. Write memory="8.8GiB" in the policy, such '
            f'as CpuPolicy(memory="8.8GiB"), or {RETRY}',
            id="host memory, and then another error",
        ),
        pytest.param(
            failed(TORCH_OOM.replace("GPU 0 has a total capacity of 79.25 GiB of which 1.25 GiB is free.", "")),
            '1 of 2 trials ran out of GPU memory and needed at least 20 GiB. Write GpuMemoryPolicy(gpu_memory="22GiB") '
            f"(its plan shows how many trials fit on a GPU), or {RETRY}",
            id="GPU memory of a GPU of unknown size",
        ),
        pytest.param(
            failed("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB."),
            f"1 of 2 trials ran out of GPU memory. The errors do not contain how much they needed, so {RETRY}",
            id="only the failed request, which may be a small part of the needed memory",
        ),
        pytest.param(
            failed("RuntimeError: CUDA error: out of memory"),
            f"1 of 2 trials ran out of GPU memory. The errors do not contain how much they needed, so {RETRY}",
            id="an unknown amount",
        ),
    ],
)
def test_the_errors_of_trials_are_enough_for_an_advice(tmp_path, error, advice):
    write(tmp_path, "a", json.dumps({"loss": 1}), error=error)
    write(tmp_path, "b", json.dumps({"loss": 1}), error=failed("ValueError: CUDA out of memory"))

    assert load_usage(tmp_path).advice[-2] == advice


def test_errors_that_a_record_explains_better_cause_no_second_advice(tmp_path):
    write(tmp_path, "a", error=failed(f"{TORCH_OOM}\n{report(used(7, num_ooms=1))}"))

    assert sum("ran out" in line for line in load_usage(tmp_path).advice) == 1


def torch_failure(usage, *, in_use, allowed=""):
    """Return the failure of a trial that requested 2 GiB. The GPU has 16 GiB, and 1 GiB of them is free."""
    error = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 "
        f"GiB of which 1.00 GiB is free. This process has {in_use} memory in use. {allowed}Of the allocated memory "
        f"{in_use} is allocated by PyTorch."
    )
    return failed(f"{error}\n{OomReport(out_of_memory=classify_oom_text(error), gpu_memory=usage).to_note()}")


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(used(3, num_ooms=1), id="known GPU memory"),
        pytest.param(GpuMemoryUsage(gpus=0.5, num_ooms=1), id="a simulated GPU"),
    ],
)
def test_a_trial_within_its_fraction_on_a_full_gpu_is_not_advised_to_get_a_larger_fraction(tmp_path, usage):
    write(tmp_path, "a", error=torch_failure(usage, in_use="4.00 GiB"))

    advice = [text for text in load_usage(tmp_path).advice if "ran out" in text or "per GPU" in text]

    assert advice == [
        "1 of 1 trial ran out of GPU memory at 6.0 of its 8.0 GiB, because other processes filled the GPU. Stop the "
        "other programs that nvidia-smi lists, or retry such trials: scheduler=OomRetryScheduler()"
    ]


def test_a_whole_gpu_that_other_processes_filled_is_not_too_small(tmp_path):
    write(tmp_path, "a", error=torch_failure(used(3, gpus=1, num_ooms=1), in_use="4.00 GiB"))

    assert not any("use a GPU with more memory" in text for text in load_usage(tmp_path).advice)


def test_the_needed_memory_in_an_error_is_advised_if_it_exceeds_the_fraction(tmp_path):
    usage = used(3.2, share_gib=4, gpus=0.25, num_ooms=1)
    write(tmp_path, "a", error=torch_failure(usage, in_use="3.50 GiB", allowed="3.60 GiB allowed; "))

    assert load_usage(tmp_path).advice[0] == (
        "1 of 1 trial ran out of memory with 4.0 GiB and needed at least 5.5 GiB. Write "
        'GpuMemoryPolicy(gpu_memory="6.1GiB"), with which 2 trials fit on a GPU of 16 GiB, or retry such trials with '
        "more memory: scheduler=OomRetryScheduler()"
    )


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
