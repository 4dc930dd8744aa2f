"""Tests that a decision is rejected if the version of an installed package differs from the measured version."""

from importlib.metadata import distributions, version

import pytest

from tune_policies import InvalidResourcesError
from tune_policies.trainers.scheduling.measured_versions import check_versions


def test_equal_versions_and_missing_packages_are_accepted():
    check_versions({"pydantic": version("pydantic"), "no-such-package": "1.0"})


def test_the_error_names_a_package_whose_version_differs_from_the_measured_version():
    with pytest.raises(
        InvalidResourcesError, match=r"benchmarks with pydantic 0\.1 \(.* is installed\)\. Measure again"
    ):
        check_versions({"pydantic": "0.1", "no-such-package": "1.0"})


def test_the_version_of_xgboost_cpu_is_checked_as_xgboost():
    if "xgboost-cpu" not in {each.name for each in distributions()}:
        pytest.skip("xgboost-cpu is not installed")

    check_versions({"xgboost": version("xgboost-cpu")})
    with pytest.raises(InvalidResourcesError, match=r"benchmarks with xgboost 0\.1"):
        check_versions({"xgboost": "0.1"})
