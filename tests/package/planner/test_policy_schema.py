"""Tests that the schema of ``tune-policies schema`` accepts the same policy files as ``load_policy``."""

import inspect
import json

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

import tune_policies
from tests.package.test_pages import PAGES, files
from tests.unit.planner.test_policy_conformance import POLICIES
from tune_policies import InvalidResourcesError
from tune_policies.cli.main import app
from tune_policies.policies.policy import build_policy, documented_fields
from tune_policies.policies.policy_kinds import policies_by_kind
from tune_policies.policies.policy_schema import policy_schema

SCHEMA = jsonschema.Draft202012Validator(policy_schema())
ON_PAGES = {
    f"{page.name}: {name}": data
    for page in PAGES
    for name, body in files(page)
    if not name.endswith(".py")
    if isinstance(data := yaml.safe_load(body), dict) and data.get("kind") in policies_by_kind()
}
WRONG = {
    "no kind": {"cpus": 2},
    "an unknown kind": {"kind": "GpusPolicy"},
    "a misspelled field": {"kind": "GpuPolicy", "gpu": 1},
    "a field of another policy": {"kind": "CpuPolicy", "gpus": 1},
    "a missing field": {"kind": "CappedPolicy", "inner": {"kind": "CpuPolicy"}},
    "a wrong type": {"kind": "CpuPolicy", "cpus": "many"},
    "a wrong field in an inner policy": {
        "kind": "CappedPolicy",
        "max_concurrent_trials": 2,
        "inner": {"kind": "CpuPolicy", "c": 1},
    },
    "a missing inner policy": {"kind": "FirstFeasiblePolicy", "policies": ["CpuPolicy"]},
    "a number that is not above 0": {"kind": "EvenSplitPolicy", "num_trials": 0},
}


def test_the_command_prints_a_valid_schema():
    done = CliRunner().invoke(app, ["schema"])

    assert json.loads(done.stdout) == policy_schema()
    jsonschema.Draft202012Validator.check_schema(policy_schema())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_the_schema_accepts_every_serialized_policy(policy):
    SCHEMA.validate(json.loads(policy.to_json()))


@pytest.mark.parametrize("name", ON_PAGES)
def test_the_schema_accepts_every_policy_in_the_documentation(name):
    SCHEMA.validate(ON_PAGES[name])


@pytest.mark.parametrize("field", ["profile", "decision"])
def test_the_schema_accepts_a_file_name_for_a_profile_or_a_decision(field):
    kind = {"profile": "GpuMemoryPolicy", "decision": "BenchmarkedPolicy"}[field]

    SCHEMA.validate({"kind": kind, field: f"{field}.json"})


@pytest.mark.parametrize("name", WRONG)
def test_the_schema_rejects_data_that_the_policy_rejects(name):
    with pytest.raises(InvalidResourcesError):
        build_policy(WRONG[name])

    assert not SCHEMA.is_valid(WRONG[name])


def test_every_policy_and_field_has_a_description():
    kinds = [policy_schema()["$defs"][type(policy).__name__] for policy in POLICIES]

    silent = [
        (kind["title"], name)
        for kind in kinds
        for name, field in kind["properties"].items()
        if name != "kind" and not field["description"]
    ]
    assert not silent
    assert all(kind["description"] for kind in kinds)


@pytest.mark.parametrize("name", [name for name in tune_policies.__all__ if name.endswith("Policy")])
def test_the_docstring_of_a_policy_describes_all_its_fields(name):
    """The schema, ``help`` and the reference show these descriptions. A class does not get those of its base class."""
    cls = getattr(tune_policies, name)

    assert documented_fields(inspect.getdoc(cls) or "").keys() == cls.model_fields.keys()
