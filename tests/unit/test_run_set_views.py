"""Views of a run set: parts, summaries, tables and texts for other programs."""

import csv
import io
import json
from datetime import datetime, timedelta, timezone

import pyperf
import pytest
from rich.console import Console

from tests.run_sets import BEGAN, a_run_set
from tune_policies.benchmarks.record.run_set import (
    Arm,
    Block,
    Environment,
    Failure,
    GpuFacts,
    NoiseReading,
    Phase,
    ProcessRun,
)
from tune_policies.benchmarks.record.run_set_file import csv_text, pyperf_data, pyperf_text, select
from tune_policies.benchmarks.record.summary import StepTime, summarize, time_text
from tune_policies.benchmarks.report.tables import print_run_set
from tune_policies.values.errors import InvalidResourcesError

MLP = Arm(workload="mlp", size=64, device="cpu")


@pytest.fixture(scope="module")
def run_set():
    return a_run_set(sizes=(16, 64), num_rounds=2)


def process(number, *seconds, arm=MLP, phase=Phase.COMPUTE, **fields):
    """A process with a warm-up of a minute, and blocks of two steps that took ``seconds`` a step."""
    warmup = Block(phase=phase, order=0, at_s=0, num_steps=1, seconds=60, is_warmup=True)
    blocks = (Block(phase=phase, order=1, at_s=1, num_steps=2, seconds=2 * each) for each in seconds)
    about = {"round": number, "order": 0, "pid": 1, "node": "a", "started_at": BEGAN, **fields}
    return ProcessRun(arm=arm, blocks=(warmup, *blocks), **about)


def of(*runs, **fields):
    return a_run_set(num_rounds=1, missing=(), has_failure=False, runs=runs, **fields)


def in_pyperf(data):
    return pyperf.BenchmarkSuite.loads(json.dumps(data))


def shown(run_set, width=140):
    console = Console(file=io.StringIO(), width=width)
    print_run_set(run_set, console)
    return console.file.getvalue()


def test_an_arm_is_the_median_of_its_processes_medians():
    runs = of(process(0, 1, 2, 90), process(1, 4, 4, 4), process(2, 3, 3, 3))

    (summary,) = summarize(runs)
    assert summary.times_s == {Phase.COMPUTE: StepTime(median=3, half_iqr=0.5, low=2, high=4, num_processes=3)}


def test_one_process_has_no_spread():
    (summary,) = summarize(of(process(0, 1, 2, 3)))

    assert summary.times_s[Phase.COMPUTE].half_iqr is None


def test_samples_a_second_are_those_with_transfers():
    runs = of(process(0, 0.5, phase=Phase.TRANSFERS, samples_per_step=64))

    assert summarize(runs)[0].samples_per_s == 128


def test_memory_is_the_most_of_all_processes_and_energy_their_median():
    uses = ((2, 5, 10), (3, 4, 30), (1, None, 20))
    runs = of(
        *(
            process(number, 1, peak_host_bytes=host, peak_gpu_bytes=gpu, energy_j=energy)
            for number, (host, gpu, energy) in enumerate(uses)
        )
    )

    (summary,) = summarize(runs)
    assert (summary.peak_host_bytes, summary.peak_gpu_bytes, summary.energy_j) == (3, 5, 20)


def test_summaries_come_by_workload_size_and_device_with_the_control_behind_its_twin(run_set):
    names = [str(summary.arm) for summary in summarize(run_set)]

    assert names[:4] == ["matmul[16] on cpu", "matmul[16] on cpu (control)", "matmul[16] on gpu", "matmul[64] on cpu"]


@pytest.mark.parametrize(
    ("median", "half_iqr", "text"),
    [
        (0.00825, 0.00014, "8.25 ±0.14 ms"),
        (0.9996e-3, None, "1 ms"),
        (0.5, 0.123, "500 ±123 ms"),
        (75.04, 0, "75 ±0 s"),
        (3.2e-7, 1e-9, "320 ±1 ns"),
        (2e-10, None, "0.2 ns"),
        (12345, None, "3.43 h"),
    ],
)
def test_a_time_has_three_digits_and_its_spread_two(median, half_iqr, text):
    assert time_text(median, half_iqr) == text


def test_the_table_has_a_row_for_each_arm(run_set):
    rows = [line.split() for line in shown(run_set).splitlines()]

    assert sum(row[:1] in (["mlp"], ["matmul"]) for row in rows) == len(run_set.arms)


def test_a_device_that_is_missing_stands_in_the_table_without_a_time_and_below_with_the_reason(run_set):
    lines = shown(run_set).splitlines()

    assert any(line.split() == ["all", "TPU", "not", "there"] for line in lines)
    assert "- TPU is not there: no node has a TPU" in lines


def test_columns_of_which_nothing_is_known_are_left_out():
    heading = shown(of(process(0, 1))).splitlines()[1]

    assert heading.split() == ["Workload", "Device", "Size", "Compute"]


def test_failures_that_are_alike_are_told_once():
    failures = tuple(Failure(arm=MLP, round=number, kind="raised", message="ValueError: no") for number in (0, 1, 4))

    assert "- mlp[64] on cpu, rounds 0, 1, 4: ValueError: no\n" in shown(of(failures=failures))


def test_warnings_of_processes_that_have_times_are_told_once():
    runs = (process(number, 1, warnings=("its first epoch was cut",)) for number in (0, 2))

    assert "- mlp[64] on cpu, rounds 0, 2: its first epoch was cut\n" in shown(of(*runs))


def test_what_was_measured_of_nothing_is_told_without_a_table():
    assert shown(of(is_complete=False)).startswith("- the run was ended before all was measured")


def test_noise_is_told_from_least_to_most():
    noise = (
        NoiseReading(round=0, load=0.1, throttled_s=0.5, cpu_mhz=2400),
        NoiseReading(round=1, load=1.5, throttled_s=0.25, gpu_throttled=("hot",), cpu_mhz=3000),
    )

    assert (
        "Noise: other processes used 0.10 to 1.50 CPUs, the cgroup held processes back for 0.75 s, "
        "a GPU's clock was held down: hot, CPUs ran at 2400 to 3000 MHz\n"
    ) in shown(of(noise=noise))


def test_a_text_of_a_file_steers_no_terminal():
    failure = Failure(arm=MLP, round=0, kind="raised", message="[red]a\x1b[2Jb")

    assert "round 0: [red]a\\u001b[2Jb" in shown(of(failures=(failure,)))


def test_the_machine_is_told_in_a_line():
    machine = Environment(
        cpu_model="EPYC",
        num_cpus=16,
        usable_cpus=2.5,
        host_memory_bytes=2**36,
        cgroup_memory_bytes=2**33,
        gpus=(GpuFacts(name="H200", memory_bytes=2**37, driver="550.1"),) * 2,
        python="3.12",
        versions={"ray": "2.60"},
        commit="0123456789abcdef",
        has_changes=True,
    )

    assert str(machine) == (
        "EPYC, 2.5 of 16 CPUs, 8 GiB of 64 GiB host memory, 2 H200 (128 GiB, driver 550.1); "
        "Python 3.12, ray 2.60, commit 0123456789ab with changes"
    )


def test_a_part_has_what_was_named_only(run_set):
    part = select(run_set, workloads=["mlp"], devices=["gpu"], phases=[Phase.COMPUTE])

    assert {arm.workload for arm in part.arms} == {"mlp"}
    assert {arm.device for arm in part.arms} == {"gpu"} == {found.device for found in part.devices}
    assert {block.phase for run in part.runs for block in run.blocks} == {Phase.COMPUTE}
    assert all(run.first_epoch_s is None for run in part.runs)


def test_without_names_all_is_chosen(run_set):
    assert select(run_set) == run_set


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"workloads": ["mpl"]}, r"unknown workload 'mpl'; did you mean 'mlp'\? \(there: matmul, mlp\)"),
        ({"devices": ["gpux"]}, r"unknown device 'gpux'; did you mean 'gpu'\? \(there: TPU, cpu, gpu\)"),
        ({"devices": ["TPU"]}, "nothing was measured on 'TPU': no node has a TPU"),
    ],
    ids=["workload", "device", "missing device"],
)
def test_a_name_of_which_nothing_was_measured_is_refused(names, message, run_set):
    with pytest.raises(InvalidResourcesError, match=message):
        select(run_set, **names)


def test_a_run_at_a_time_that_no_clock_has_shown_is_an_error():
    at = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    run = process(0, 1, 2).model_copy(update={"started_at": at})

    with pytest.raises(InvalidResourcesError, match="which no clock has shown"):
        pyperf_data(of(run))


def test_a_phase_of_which_nothing_was_measured_is_refused():
    with pytest.raises(InvalidResourcesError, match="nothing was measured of with-transfers"):
        select(of(process(0, 1)), phases=[Phase.TRANSFERS])


def test_what_pyperf_reads_are_the_same_times_with_warmups_apart():
    (benchmark,) = in_pyperf(pyperf_data(of(process(0, 1, 2), process(1, 3, 4))))

    assert (benchmark.get_name(), benchmark.get_unit(), benchmark.get_loops()) == ("mlp[64] cpu compute", "second", 2)
    assert [run.values for run in benchmark.get_runs()] == [(1, 2), (3, 4)]
    assert [run.warmups for run in benchmark.get_runs()] == [((1, 60),), ((1, 60),)]


def test_each_arm_and_phase_is_a_benchmark_of_pyperf(run_set):
    names = in_pyperf(pyperf_data(run_set)).get_benchmark_names()

    assert len(set(names)) == len(names) == 3 * len(run_set.arms)


def test_pyperf_gets_a_run_for_each_process_on_whatever_node():
    runs = of(process(0, 1, node="a", peak_host_bytes=1), process(1, 1, node="b"), process(2, 1, node="a b\nc"))

    (benchmark,) = in_pyperf(pyperf_data(runs))
    assert [run.get_metadata()["node"] for run in benchmark.get_runs()] == ["a", "b", "a b c"]


def test_benchmarks_of_two_devices_have_the_same_names_when_exported(run_set):
    cpu, gpu = (in_pyperf(json.loads(pyperf_text(run_set, device))) for device in ("cpu", "gpu"))

    assert cpu.get_benchmark_names() == gpu.get_benchmark_names()


def test_a_csv_has_a_row_for_each_block_and_each_first_epoch(run_set):
    rows = list(csv.DictReader(io.StringIO(csv_text(run_set))))

    assert len(rows) == sum(len(run.blocks) + 1 for run in run_set.runs)
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(
        sum(sum(block.seconds for block in run.blocks) + run.first_epoch_s for run in run_set.runs)
    )


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        *((f"{start}cmd|x", f"'{start}cmd|x") for start in "=+-@\uff1d"),
        ("\t=x", r"\t=x"),
        ("\r=x", r"\r=x"),
        ("a\r\n=x", r"a\r\n=x"),
    ],
)
def test_no_text_in_a_csv_is_a_formula(text, cell):
    (row,) = csv.DictReader(io.StringIO(csv_text(of(process(0, node=text)))))

    assert row["node"] == cell


def test_a_number_in_a_csv_stays_a_number():
    block = Block(phase=Phase.COMPUTE, order=0, at_s=0, num_steps=1, seconds=1)
    run = process(0).model_copy(update={"blocks": (block.model_copy(update={"at_s": -1.5}),)})

    assert next(csv.DictReader(io.StringIO(csv_text(of(run)))))["at_s"] == "-1.5"
