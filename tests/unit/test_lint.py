"""Files are read and asked all rules; whatever is in them, there is a finding with its line and no traceback."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.manifests_with import changed
from tune_policies.kuberay.lint.linting import lint_file, lint_text

CLUSTER = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: demo
spec:
  enableInTreeAutoscaling: true
  headGroupSpec:
    template:
      spec:
        containers:
        - name: ray-head
          resources: {limits: {cpu: "2"}}
  workerGroupSpecs:
  - groupName: small
    minReplicas: 0
    maxReplicas: 1
    template: &pod
      spec:
        containers:
        - name: ray-worker
          resources: {limits: {cpu: "2"}}
"""


def places(text, *rules):
    return [(each.line, each.rule) for each in lint_text(text, "demo.yaml") if each.rule in rules]


def test_a_finding_has_the_line_of_its_part():
    text = CLUSTER.replace("minReplicas: 0", "minReplicas: 7")

    assert places(text, "min-above-max") == [(15, "min-above-max")]


def test_what_is_missing_has_the_line_of_what_it_should_stand_in():
    text = CLUSTER.replace('\n        - name: ray-worker\n          resources: {limits: {cpu: "2"}}', " [{name: ray}]")

    assert places(text, "no-cpus") == [(19, "no-cpus")]


def test_a_part_that_an_alias_stands_for_has_the_line_of_the_alias():
    text = CLUSTER.replace(
        'worker\n          resources: {limits: {cpu: "2"}}', "worker\n          resources: {limits: {cpu: 500m}}"
    )
    text += "  - groupName: large\n    maxReplicas: 1\n    template: *pod\n"

    assert places(text, "cpus-rounded-up") == [(21, "cpus-rounded-up"), (24, "cpus-rounded-up")]


@pytest.mark.parametrize(
    ("of_head", "way_out"),
    [
        ("", "use an image with Ray 2.60.0; or, if the head has 2.59.0 too, write the image's version in rayVersion"),
        ("image: rayproject/ray:2.59.0, ", "write the image's version in rayVersion"),
    ],
    ids=["image of the head without a version", "image of the head as well"],
)
def test_of_an_image_with_another_ray_the_way_out_depends_on_the_heads(of_head, way_out):
    text = CLUSTER.replace("spec:\n  enable", 'spec:\n  rayVersion: "2.60.0"\n  enable')
    text = text.replace("name: ray-worker", "name: ray-worker\n          image: rayproject/ray:2.59.0")
    text = text.replace("- name: ray-head\n          ", f"- {{{of_head}name: ray-head, ").replace(
        '{limits: {cpu: "2"}}\n  worker', '{limits: {cpu: "2"}}}\n  worker'
    )

    found = [each for each in lint_text(text, "") if each.rule == "version-of-image"]
    assert found[-1].fix == way_out


def test_each_document_of_a_file_is_checked():
    text = f"{CLUSTER}---\n{CLUSTER}".replace("minReplicas: 0", "minReplicas: 7")

    assert [(each.document, each.line) for each in lint_text(text, "") if each.rule == "min-above-max"] == [
        (0, 15),
        (1, 37),
    ]


def test_what_kubectl_lists_is_checked():
    items = CLUSTER.replace("minReplicas: 0", "minReplicas: 7").splitlines()
    text = "apiVersion: v1\nkind: List\nitems:\n- " + "\n  ".join(items) + "\n"

    assert places(text, "min-above-max") == [(18, "min-above-max")]


def test_a_long_list_is_read_in_a_moment():
    items = "- {kind: RayCluster, apiVersion: ray.io/v1}\n" * 3000

    assert len(lint_text(f"kind: List\napiVersion: v1\nitems:\n{items}", "")) == 3000


UNREADABLE = {
    "no YAML": ("a: [1\nb: 2\n", 2),
    "a tab": ("a:\n\tb: 1\n", 2),
    "code": ("a: 1\nb: !!python/object/apply:os.system [ls]\n", 2),
    "a key that comes twice": ("a: 1\nb: 1\na: 2\n", 3),
    "an alias of itself": ("a: 1\nb: &b [*b]\n", 2),
    "an alias of nothing": ("a: *none\n", 1),
    "NUL": ("a: 1\nb: \0\n", 2),
}


@pytest.mark.parametrize(("text", "line"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_a_finding_with_its_line(text, line):
    assert [(each.rule, each.line) for each in lint_text(text, "x")] == [("unreadable", line)]


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"\x1f\x8bno"], ids=["no file", "no UTF-8", "no gzip"])
def test_a_file_that_cannot_be_read_is_a_finding(tmp_path, content):
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content)

    assert [each.rule for each in lint_file(path)] == ["unreadable"]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "kind: ConfigMap\napiVersion: v1\n"], ids=["empty", "a comment", "other"]
)
def test_of_a_file_without_a_cluster_it_says_so(text):
    assert [(each.rule, each.severity) for each in lint_text(text, "x")] == [("nothing-known", "note")]


def test_a_fraction_without_quotes_is_found_and_the_rest_is_checked():
    text = CLUSTER.replace("minReplicas: 0", "minReplicas: 7").replace('limits: {cpu: "2"}', "limits: {cpu: 0.5}")

    found = [(each.line, each.rule) for each in lint_text(text, "")]
    assert (12, "wrong-field") in found
    assert (15, "min-above-max") in found


def test_a_number_where_a_text_is_due_is_found_and_the_rest_is_checked():
    text = CLUSTER.replace("minReplicas: 0", "minReplicas: 7\n    rayStartParams: {num-cpus: 4}")

    assert places(text, "wrong-field", "min-above-max") == [(15, "min-above-max"), (16, "wrong-field")]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 10),
    st.sampled_from(["", "x", "0.5", "500m", "-1", "v2", "Always", '{"a": 1}', '"{"', "RayJob", "2.56.0"]),
    st.floats(allow_nan=False),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["a", "name", "type", "policy"]), st.integers(), max_size=2),
)
PLACES = st.sampled_from(
    [
        *("kind", "apiVersion", "metadata", "metadata.name", "metadata.annotations", "metadata.labels", "spec"),
        *(
            "spec.suspend",
            "spec.submissionMode",
            "spec.backoffLimit",
            "spec.ttlSecondsAfterFinished",
            "spec.entrypoint",
        ),
        *("spec.deletionStrategy", "spec.deletionStrategy.deletionRules", "spec.deletionStrategy.onSuccess"),
        *("spec.clusterSelector", "spec.runtimeEnvYAML", "spec.entrypointResources", "spec.rayClusterSpec"),
        *("spec.upgradeStrategy", "spec.upgradeStrategy.type", "spec.upgradeStrategy.clusterUpgradeOptions"),
        *("spec.serveConfigV2", "spec.rayClusterConfig", "spec.rayClusterDeletionDelaySeconds"),
        *("spec.rayVersion", "spec.autoscalerOptions", "spec.autoscalerOptions.version", "spec.autoscalerOptions.env"),
        *("spec.headGroupSpec", "spec.headGroupSpec.rayStartParams", "spec.headGroupSpec.template"),
        *("spec.headGroupSpec.template.spec.containers", "spec.headGroupSpec.template.spec.containers.0.env"),
        *("spec.workerGroupSpecs", "spec.workerGroupSpecs.0", "spec.workerGroupSpecs.0.groupName"),
        *("spec.workerGroupSpecs.0.labels", "spec.workerGroupSpecs.0.resources", "spec.workerGroupSpecs.0.priority"),
        *(
            "spec.gcsFaultToleranceOptions",
            "spec.gcsFaultToleranceOptions.storage",
            "spec.authOptions",
            "spec.tlsOptions",
        ),
        *("spec.networkPolicy", "spec.networkPolicy.workerGroups", "spec.managedBy", "spec.upgradeStrategy"),
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["RayCluster", "RayJob", "RayService"]), PLACES, VALUES)
def test_whatever_stands_in_a_field_there_are_findings_and_no_error(kind, place, value):
    try:
        text = changed(kind, {place: {"x": 1} if value is None else value})
    except (TypeError, KeyError, IndexError):
        return

    assert all(each.line <= text.count("\n") + 1 for each in lint_text(text, "x"))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(CLUSTER)), st.text(alphabet=" \t\n:-{}[]&*!|>'\"#a0%@", max_size=4), st.integers(0, 5))
def test_whatever_is_typed_into_a_file_there_are_findings_and_no_error(place, typed, lost):
    text = CLUSTER[:place] + typed + CLUSTER[place + lost :]

    assert all(each.line <= text.count("\n") + 1 for each in lint_text(text, "x"))
