"""Tests of the check that a measurement used the installed package versions."""

import pytest

from tune_policies import InvalidResourcesError
from tune_policies.trainers.scheduling import measured_versions
from tune_policies.trainers.scheduling.measured_versions import check_versions


def test_a_measurement_with_other_versions_is_refused(monkeypatch):
    monkeypatch.setattr(measured_versions, "version", {"ray": "2.60", "torch-cpu": "2.0", "numpy": "2.1"}.__getitem__)
    monkeypatch.setattr(measured_versions, "PackageNotFoundError", KeyError)

    with pytest.raises(InvalidResourcesError) as caught:
        check_versions({"torch": "2.4", "ray": "2.50", "numpy": "2.1", "unknown": "1"})

    assert "benchmarks with ray 2.50 (2.60 is installed), torch 2.4 (2.0 is installed). Measure" in str(caught.value)


def test_a_measurement_with_the_installed_or_with_unknown_versions_is_valid(monkeypatch):
    monkeypatch.setattr(measured_versions, "version", {"ray": "2.60"}.__getitem__)
    monkeypatch.setattr(measured_versions, "PackageNotFoundError", KeyError)

    assert check_versions({"ray": "2.60", "unknown": "1"}) is None
