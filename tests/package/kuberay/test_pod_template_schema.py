"""Tests of the file with Kubernetes' definition of pod templates."""

import json
import os
from pathlib import Path

import jsonschema
import pytest

import tune_policies.kuberay.lint as lint
from tests.pod_template_schema import ENUMS, pod_template_schema
from tune_policies.kuberay.lint.linting import lint_file

TEXT = Path(lint.__file__).with_name("pod_template.json").read_text()
SCHEMA = json.loads(TEXT)
PACKAGE = os.environ.get("TUNE_POLICIES_KUBERNETES_VALIDATE")
SAMPLES = os.environ.get("TUNE_POLICIES_KUBERAY_SAMPLES")


def test_the_file_is_a_json_schema_without_missing_definitions():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    used = {part.partition('"')[0] for part in TEXT.split('"#/$defs/')[1:]}
    assert used <= SCHEMA["$defs"].keys()


def test_the_file_contains_the_enumerations():
    wrong = [
        (name, field)
        for name, enums in ENUMS.items()
        for field, values in enums.items()
        if SCHEMA["$defs"][name]["properties"][field] != {"enum": [*values, "", None]}
    ]

    assert wrong == []


@pytest.mark.skipif(PACKAGE is None, reason="TUNE_POLICIES_KUBERNETES_VALIDATE names no wheel of kubernetes-validate")
def test_the_file_is_what_the_command_writes():
    assert pod_template_schema(Path(PACKAGE)) == TEXT


@pytest.mark.skipif(SAMPLES is None, reason="TUNE_POLICIES_KUBERAY_SAMPLES names no folder of KubeRay's samples")
def test_the_samples_of_kuberay_have_only_notes():
    found = [each for path in sorted(Path(SAMPLES).glob("*.yaml")) for each in lint_file(path)]

    assert [each for each in found if each.severity != "note"] == []
