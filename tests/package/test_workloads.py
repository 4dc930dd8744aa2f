"""The trainings that the benchmarks run, on the CPU."""

import pytest
from ray import tune

from benchmarks.packing.trainings import WORKLOADS, make_data, train_workload


def reports(monkeypatch, **config):
    seen = []
    monkeypatch.setattr(tune, "report", seen.append)
    train_workload({"num_steps": 3, "num_reports": 2, "seed": 0, **config})
    return seen


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_trains_the_same(name, monkeypatch):
    first, second = (reports(monkeypatch, workload=name) for _ in range(2))

    assert first == second
    assert [each["steps"] for each in first] == [2, 3]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_model_takes_its_batch_and_gives_a_score_for_each_class(name):
    workload = WORKLOADS[name]
    samples, labels = make_data(workload)

    scores = workload.build_model()(samples[0])

    assert scores.shape == (workload.batch_size, 10)
    assert labels[0].max() < 10


def test_the_residual_network_has_the_size_of_resnet_18():
    weights = sum(weight.numel() for weight in WORKLOADS["resnet18"].build_model().parameters())

    assert weights == pytest.approx(11.2e6, rel=0.01)
