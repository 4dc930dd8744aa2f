"""Tests that the reference contains every public name, and the tables contain every policy."""

import re
from doctest import DocTestParser
from pathlib import Path

import pytest

import tune_policies
from tests.decisions import a_decision
from tests.reference_examples import examples, failures_of
from tune_policies import CpuPolicy, kuberay, testing, trainers
from tune_policies.kuberay import NodeCatalog, design_cluster, write_cluster

NODES = NodeCatalog.from_dict([{"cpus": 8, "memory": "32GiB"}])
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


EXAMPLES = examples()


def test_the_page_of_every_policy_links_to_its_guide():
    guides = dict(re.findall(r'^    "(\w+)": "(how-to/[\w-]+)",$', (DOCS / "conf.py").read_text(), re.MULTILINE))
    policies = {name for name in tune_policies.__all__ if name.endswith("Policy")} - {"ResourcePolicy"}

    assert policies <= guides.keys()
    assert [guide for guide in guides.values() if not (DOCS / f"{guide}.md").exists()] == []


@pytest.mark.parametrize("package", [tune_policies, kuberay, trainers, testing], ids=lambda package: package.__name__)
def test_every_public_name_has_an_example(package):
    assert {*package.__all__} <= {*EXAMPLES[""], *EXAMPLES["Ray"], *EXAMPLES["GPU"]}


@pytest.mark.parametrize("name", EXAMPLES[""])
@pytest.mark.filterwarnings("ignore")  # frameworks and Ray warn when they are imported
def test_an_example_of_the_reference_prints_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "decision.json").write_text(a_decision().to_json())
    (tmp_path / "cluster.yaml").write_text(write_cluster(design_cluster(CpuPolicy(cpus=2), NODES, 8)))

    assert failures_of(name, EXAMPLES[""][name]) == ""


def test_the_examples_that_need_a_gpu_are_valid_python():
    for text in EXAMPLES["GPU"].values():
        compile("".join(part.source for part in DocTestParser().get_examples(text)), "example", "exec")
