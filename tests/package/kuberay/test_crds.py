"""Tests that the manifests that this project writes match KubeRay's CRDs, which are stored outside the repository."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.package.kuberay.kuberay_crds import load_validators, problems, read_crds
from tests.unit.kuberay.designed_clusters import a_design, cluster_plans, filled_in
from tests.unit.kuberay.planted.sound import SOUND
from tune_policies.files.yaml_documents import Document
from tune_policies.kuberay.lint.misspelled_fields import misspelled_fields
from tune_policies.kuberay.writing import WriteOptions, write_cluster

FOLDER = os.environ.get("TUNE_POLICIES_CRDS", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="set TUNE_POLICIES_CRDS to the folder of the CRDs")

fields = {
    "ray_version": st.sampled_from(["2.50.0", "2.60.0"]),
    "platform": st.sampled_from(["gke", "eks", "aks", "karpenter", "gpu-operator", None]),
    "namespace": st.none() | st.just("ml"),
}
images = st.just("registry.example:5000/ray:mine")
jobs = st.sampled_from(["python train.py", "ls # 'all'", "a\n- b\u2028c: d"])
environments = st.just({"working_dir": "s3://bucket/code.zip", "pip": ["tune-policies"]})
options = st.one_of(
    st.builds(WriteOptions, **fields, image=st.none() | images),
    st.builds(WriteOptions, **fields, job=jobs, image=images),
    st.builds(WriteOptions, **fields, job=jobs, runtime_env=environments),
)


@pytest.fixture(scope="module")
def crds():
    return load_validators(Path(FOLDER))


@given(cluster_plans(), options, st.sampled_from([str, filled_in]))
@settings(max_examples=30)
def test_manifests_match_all_crds(crds, plan, how, change):
    """The change ``filled_in`` sets the optional fields of a manifest."""
    manifest = yaml.load(change(write_cluster(plan, how)), getattr(yaml, "CSafeLoader", yaml.SafeLoader))

    assert problems(crds, manifest) == []


def test_the_valid_files_of_the_lint_tests_match_all_crds(crds):
    sound = [yaml.safe_load(text) for text in SOUND.values()]

    assert [problem for each in sound if each.get("kind") in crds for problem in problems(crds, each)] == []


@pytest.mark.rest
def test_no_official_field_is_reported_as_a_typo():
    def filled(schema):
        """Return a value with every field of a schema."""
        if schema.get("type") == "array":
            return [filled(schema["items"])]
        return {name: filled(each) for name, each in schema.get("properties", {}).items()}

    for spec in read_crds(Path(FOLDER)):
        for version in spec["versions"]:
            manifest = {**filled(version["schema"]["openAPIV3Schema"]), "kind": spec["names"]["kind"]}
            assert list(misspelled_fields(Document(manifest, {}, ""))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("rayVersoin",), "2.60.0"),
        (("autoscalerOptions", "version"), 2),
        (("workerGroupSpecs", 0, "maxReplicas"), "3"),
        (("workerGroupSpecs", 0, "resources"), {"GPU": 1}),
        (("workerGroupSpecs", 0, "rayStartParams"), {"num-gpus": 1}),
        (("workerGroupSpecs", 0, "template", "spec", "toleration"), []),
    ],
    ids=lambda part: ".".join(map(str, part)) if isinstance(part, tuple) else "",
)
def test_a_damaged_manifest_does_not_match_the_crds(crds, path, value):
    """Without this test, the tests above could pass because the CRDs accept every manifest."""
    manifest = yaml.safe_load(write_cluster(a_design()))
    part = manifest["spec"]
    for key in path[:-1]:
        part = part[key]

    part[path[-1]] = value

    assert problems(crds, manifest)
