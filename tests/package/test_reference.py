"""Tests that the reference contains every public name, and the tables contain every policy."""

import re
from pathlib import Path

import pytest

import tune_policies
from tune_policies import kuberay, testing, trainers

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("package", [tune_policies, kuberay, trainers, testing], ids=lambda package: package.__name__)
def test_every_public_name_is_in_the_reference(package):
    listed = set(re.findall(r"^   (\w+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE))

    assert set(package.__all__) <= listed


def test_the_tables_contain_every_policy():
    policies = {name for name in tune_policies.__all__ if name.endswith("Policy")}
    page = (DOCS / "choose.md").read_text()

    missing = policies - set(re.findall(r"`(\w+)\(", page)) - {"ResourcePolicy", "FirstFeasiblePolicy"}
    assert not missing
    assert " \\| CpuPolicy(" in page  # ``a | b`` creates a FirstFeasiblePolicy
