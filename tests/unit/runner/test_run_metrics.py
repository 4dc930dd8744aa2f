"""Tests of the values of a run's metrics, and of the names and tags that the dashboard uses."""

import re

import pytest

from tune_policies.files.reading import read_data
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.resource_usage import DASHBOARD, OutOfMemoryCounts, TrialCounts
from tune_policies.trainers.usage.run_metrics import COUNTERS, GAUGES, counts_of, gauges_of
from tune_policies.trainers.usage.run_monitor import RunStatus

STATUS = RunStatus(
    slots={"0.5 GPU": (4, 3), "2 CPUs": (1, 0)},
    gpu_memory={("0.5 GPU", place): GpuMemoryUsage(share_bytes=8, peak_reserved_bytes=3) for place in (1, 64)},
    available={"GPU": 2},
    idle={("GPU", "no trial was waiting"): 0.5},
    trials=TrialCounts(num_finished=7, num_unfinished=3, num_retries=2),
    out_of_memory=OutOfMemoryCounts(num_gpu_errors=2, num_raised=2),
)


def expressions():
    dashboard = read_data(DASHBOARD)
    variables = [each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]] + variables


def exported():
    """Return the metrics, keyed by the names under which Ray exports them."""
    return {f"ray_{each.name}": each for each in GAUGES} | {f"ray_{each.name}_total": each for each in COUNTERS}


def test_the_dashboard_shows_exactly_the_exported_metrics():
    asked = {name for text in expressions() for name in re.findall(r"ray_\w+", text)}

    assert asked == set(exported())


def test_the_dashboard_groups_only_by_tags_of_the_metric():
    groups = [found for text in expressions() for found in re.findall(r"by \(([\w, ]+)\) \((\w+)\{", text)]
    unknown = [(name, set(by.split(", ")) - {"run", *exported()[name].tags}) for by, name in groups]

    assert len(groups) == sum(text.count(" by (") for text in expressions())
    assert [each for each in unknown if each[1]] == []


def test_each_gauge_has_a_value():
    values = {
        (metric.name.removeprefix("tune_policies_"), *tags): value
        for (metric, tags), value in gauges_of(STATUS).items()
    }

    assert values == {
        ("slots", "0.5 GPU"): 4,
        ("slots_in_use", "0.5 GPU"): 3,
        ("slots", "2 CPUs"): 1,
        ("slots_in_use", "2 CPUs"): 0,
        ("gpu_memory_bytes", "0.5 GPU", "1"): 3,
        ("gpu_memory_share_bytes", "0.5 GPU", "1"): 8,
        ("resources", "GPU"): 2,
        ("resources_idle", "GPU", "no trial was waiting"): 0.5,
        ("trials", "finished"): 7,
        ("trials", "stopped early"): 0,
        ("trials", "failed"): 0,
        ("trials", "cut off"): 0,
        ("trials", "never started"): 0,
        ("trials", "not ended"): 3,
    }


def test_each_counter_has_a_value():
    counts = {tags: value for (_, tags), value in counts_of(STATUS).items()}

    assert counts == {("GPU memory",): 2, ("host memory",): 0, ("allocation refused",): 0, (): 2}


@pytest.mark.parametrize("each", [*GAUGES, *COUNTERS], ids=lambda each: each.name)
def test_no_tag_identifies_a_trial(each):
    """Prometheus stores a time series for each value of a tag, and a run may have any number of trials."""
    assert set(each.tags) <= {"slot", "place", "resource", "reason", "state", "kind"}
