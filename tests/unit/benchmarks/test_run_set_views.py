"""Tests of the views of a run set: summaries, tables, CSV, and the format of numbers."""

import csv
import io

import pytest
from rich.console import Console

from tests.run_sets import BEGAN, a_run_set
from tune_policies.benchmarks.record.run_set import (
    Block,
    Configuration,
    Environment,
    Failure,
    GpuFacts,
    NoiseReading,
    Phase,
    ProcessRun,
    Settings,
)
from tune_policies.benchmarks.record.run_set_file import csv_text
from tune_policies.benchmarks.record.summary import (
    Spread,
    digits,
    how_to_measure_a_gpu,
    not_measured,
    ratio_with_bounds,
    rounds_text,
    summarize,
    time_text,
)
from tune_policies.benchmarks.report.tables import print_run_set

MLP = Configuration(workload="mlp", size=64, device="cpu")


@pytest.fixture(scope="module")
def run_set():
    return a_run_set(sizes=(16, 64), num_rounds=2)


def process(number, *seconds, phase=Phase.COMPUTE, **fields):
    """Return a process with a warm-up of one minute. ``seconds`` has the time per step of each block."""
    warmup = Block(phase=phase, order=0, at_s=0, num_steps=1, seconds=60, is_warmup=True)
    blocks = (Block(phase=phase, order=1, at_s=-1.5, num_steps=2, seconds=2 * each) for each in seconds)
    about = {"round": number, "order": 0, "pid": 1, "node": "a", "started_at": BEGAN, **fields}
    return ProcessRun(configuration=MLP, blocks=(warmup, *blocks), **about)


def of(*runs, **fields):
    return a_run_set(num_rounds=1, missing=(), has_failure=False, runs=runs, **fields)


def shown(run_set):
    console = Console(file=io.StringIO(), width=140)
    print_run_set(run_set, console)
    return console.file.getvalue()


def test_a_time_is_summarized_by_the_median_and_quartiles_of_the_medians_of_processes():
    runs = of(process(0, 1, 2, 90), process(1, 4, 4, 4), process(2, 3, 3, 3))

    (summary,) = summarize(runs)
    assert summary.times_s == {Phase.COMPUTE: Spread(median=3, low=2.5, high=3.5)}


def test_a_summary_has_the_peak_memory_and_the_samples_per_second_with_transfers():
    uses = ((2, 5), (3, 4), (1, None))
    runs = of(
        *(
            process(
                number,
                *(0.5,),
                phase=Phase.TRANSFERS,
                samples_per_step=64,
                peak_host_bytes=host,
                peak_gpu_bytes=gpu,
            )
            for number, (host, gpu) in enumerate(uses)
        )
    )

    (found,) = summarize(runs)
    assert (found.peak_host_bytes, found.peak_gpu_bytes, found.samples_per_s) == (3, 5, 128)


def test_summaries_are_sorted_by_workload_size_and_device_and_a_control_follows_its_configuration(run_set):
    names = [str(summary.configuration) for summary in summarize(run_set)]

    assert names[:4] == ["matmul[16] on cpu", "matmul[16] on cpu (control)", "matmul[16] on gpu", "matmul[64] on cpu"]


@pytest.mark.parametrize(
    ("median", "half_iqr", "text"),
    [
        (0.00825, 0.00014, "8.25 ±0.14 ms"),
        (0.9996e-3, None, "1 ms"),
        (999.4e-6, None, "999 µs"),
        (0.5, 0.123, "500 ±123 ms"),
        (75.04, 0, "75 ±0 s"),
        (3.2e-7, 1e-9, "320 ±1 ns"),
        (2e-10, None, "0.2 ns"),
        (1234, None, "20.6 min"),
        (12345, None, "3.43 h"),
    ],
)
def test_a_time_is_rounded_and_has_a_suitable_unit(median, half_iqr, text):
    assert time_text(median, half_iqr) == text


@pytest.mark.parametrize(
    ("is_complete", "text"), [(True, "2 of 4 rounds"), (False, "2 of 4 rounds complete (the run was interrupted)")]
)
def test_the_number_of_rounds_says_whether_the_run_was_interrupted(is_complete, text):
    runs = (process(0, 1), process(1, 1))
    run_set = a_run_set(num_rounds=4, missing=(), has_failure=False, runs=runs, is_complete=is_complete)

    assert rounds_text(run_set) == text
    assert f"{text}, configurations" in shown(run_set)


@pytest.fixture
def with_timeouts():
    """A quick run with sizes 64 and 1024, in which size 1024 timed out in the first round."""
    settings = Settings(
        sizes={"mlp": (64, 1024)}, devices=("cpu",), cpus=2, num_rounds=3, num_blocks=5, process_timeout_s=30
    )
    late = Configuration(workload="mlp", size=1024, device="cpu")
    failures = tuple(
        Failure(configuration=of_both, round=0, kind="timed_out", message="after 30 s, it was still running")
        for of_both in (late, late.model_copy(update={"is_control": True}))
    )
    run = a_run_set(
        workloads=("mlp",), sizes=(64,), devices=("cpu",), num_rounds=3, has_failure=False, settings=settings
    )
    return run.model_copy(update={"failures": failures})


def test_the_command_for_a_gpu_repeats_all_requested_sizes_and_raises_a_limit_that_processes_reached(with_timeouts):
    assert how_to_measure_a_gpu(with_timeouts).splitlines() == [
        "On a machine with a GPU, run (mlp[1024] was not measured here):",
        "tune-policies bench run mlp@64,1024 --device cpu --device gpu --cpus 2 --quick --process-timeout-s 120 "
        "--output gpu-run.json",
    ]


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"num_blocks": 10, "num_rounds": 5, "process_timeout_s": 60}, ""),
        ({"num_rounds": 9, "process_timeout_s": 40}, " --quick --rounds 9 --process-timeout-s 40"),
        ({"has_control": False}, " --quick --no-control"),
    ],
)
def test_the_command_for_a_gpu_contains_only_options_that_differ_from_their_default(changes, options, with_timeouts):
    settings = with_timeouts.settings.model_copy(update=changes)
    run = with_timeouts.model_copy(update={"settings": settings, "failures": ()})

    assert f"--cpus 2{options} --output gpu-run.json" in how_to_measure_a_gpu(run)


def test_the_command_for_a_gpu_contains_the_requested_devices(with_timeouts):
    settings = with_timeouts.settings.model_copy(update={"devices": ("gpu@0.25", "cpu")})

    command = how_to_measure_a_gpu(with_timeouts.model_copy(update={"settings": settings}))
    assert "--device gpu@0.25 --device cpu --cpus" in command


def test_configurations_without_times_are_listed_by_the_kind_of_their_failure(with_timeouts):
    raised = Failure(configuration=MLP, round=2, kind="raised", message="ValueError")
    kept = tuple(run for run in with_timeouts.runs if run.configuration != MLP or run.round < 2)

    changed = {"failures": (*with_timeouts.failures, raised), "runs": kept}

    assert list(not_measured(with_timeouts.model_copy(update=changed))) == [
        "not measured: mlp[1024] on cpu (3 of 3 rounds), because processes reached their time limit of 30 s. "
        "Start a new run with a longer --process-timeout-s, or with smaller sizes",
        "not measured: mlp[64] on cpu (1 of 3 rounds), because the workload raised an error. "
        "Correct the workload, and start a new run",
    ]


def test_a_round_that_only_has_failures_is_not_counted(with_timeouts):
    first = tuple(run for run in with_timeouts.runs if run.round == 0)

    text = rounds_text(with_timeouts.model_copy(update={"runs": first}))
    assert text == "1 of 3 rounds (the other rounds have no times because of failures)"


@pytest.mark.parametrize(
    ("number", "text"), [(0.0000432, "0.0000432"), (0, "0"), (99.96, "100"), (12345.6, "12,346"), (-0.5, "-0.5")]
)
def test_a_number_is_never_written_with_an_exponent(number, text):
    assert digits(number) == text


def test_a_ratio_is_written_with_its_bounds():
    assert ratio_with_bounds(1.5, 0.04, 12) == "1.50\N{MULTIPLICATION SIGN} (0.04 to 12.0)"


def test_the_table_has_a_row_for_each_configuration_and_each_missing_device(run_set):
    rows = [line.split() for line in shown(run_set).splitlines()]

    assert sum(row[:1] in (["mlp"], ["matmul"]) for row in rows) == len(run_set.configurations)
    assert ["all", "TPU", "missing"] in rows


def test_empty_columns_are_omitted():
    heading = shown(of(process(0, 1))).splitlines()[1]

    assert heading.split() == ["Workload", "Device", "Size", "Compute"]


@pytest.mark.parametrize(
    ("run_set", "line"),
    [
        (a_run_set(sizes=(16,), num_rounds=1), "- TPU was not measured: no node has a TPU"),
        (
            of(failures=[Failure(configuration=MLP, round=n, kind="raised", message="no") for n in (0, 1, 4)]),
            "- mlp[64] on cpu, rounds 1, 2, 5: no",
        ),
        (of(*(process(n, 1, warnings=("it was cut",)) for n in (0, 2))), "- mlp[64] on cpu, rounds 1, 3: it was cut"),
        (
            of(is_complete=False),
            "- the run was interrupted before it was complete. To continue, run: tune-policies bench run --resume FILE",
        ),
        (
            of(failures=[Failure(configuration=MLP, round=0, kind="raised", message="[red]a\x1b[2Jb")]),
            r"- mlp[64] on cpu, round 1: [red]a\u001b[2Jb",
        ),
        (
            of(noise=[NoiseReading(round=0, load=0.1), NoiseReading(round=1, load=1.5, gpu_throttled=("hot",))]),
            "Noise: other processes used 0.10 to 1.50 CPUs",
        ),
        (
            of(noise=[NoiseReading(round=1, load=0, gpu_throttled=("hot",))]),
            "a GPU's clock was throttled (hot). Cool the GPU, or lock its clocks",
        ),
    ],
    ids=[
        *("a missing device", "equal failures once", "equal warnings once", "an ended run"),
        *("no escape sequences", "noise", "a disturbance"),
    ],
)
def test_the_lines_below_the_table_report_missing_times_failures_and_noise(run_set, line):
    assert line in shown(run_set).splitlines()


def test_the_machine_is_described_on_one_line():
    machine = Environment(
        cpu_model="EPYC",
        num_cpus=16,
        usable_cpus=2.5,
        host_memory_bytes=2**36,
        cgroup_memory_bytes=2**33,
        gpus=(GpuFacts(name="H200", memory_bytes=2**37, driver="550.1"),) * 2,
        python="3.12",
        versions={"ray": "2.60"},
    )

    assert str(machine) == (
        "EPYC, 2.5 of 16 CPUs, 8 GiB of 64 GiB of host memory, 2 H200 (128 GiB, driver 550.1); Python 3.12, ray 2.60"
    )


def test_a_csv_has_a_row_for_each_block_and_each_first_epoch(run_set):
    rows = list(csv.DictReader(io.StringIO(csv_text(run_set))))

    assert len(rows) == sum(len(run.blocks) + 1 for run in run_set.runs)
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(
        sum(sum(block.seconds for block in run.blocks) + run.first_epoch_s for run in run_set.runs)
    )


@pytest.mark.parametrize(
    ("text", "cell"),
    [*((f"{start}cmd|x", f"'{start}cmd|x") for start in "=+-@\uff1d"), ("\t=x", r"\t=x"), ("a\r\n=x", r"a\r\n=x")],
)
def test_a_csv_contains_no_formulas_and_numbers_remain_numbers(text, cell):
    *_, row = csv.DictReader(io.StringIO(csv_text(of(process(0, 1, node=text)))))

    assert (row["node"], row["at_s"]) == (cell, "-1.5")
