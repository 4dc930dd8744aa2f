"""Tests that each finding has the line number of the mistake, and that no file causes a traceback."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.scripts.scripts import start

from tests.unit.kuberay.manifests_with import changed
from tests.unit.kuberay.planted.sound import CLUSTER as SOUND_CLUSTER
from tests.unit.kuberay.planted.sound import JOB
from tune_policies.kuberay.lint.linting import lint_file, lint_text
from tune_policies.kuberay.lint.rules.cpus_and_memory import START_PARAMS

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


def test_a_finding_has_the_line_of_its_field():
    text = CLUSTER.replace("minReplicas: 0", "minReplicas: 7")

    assert places(text, "min-above-max") == [(15, "min-above-max")]


def test_a_missing_field_has_the_line_of_its_parent():
    text = CLUSTER.replace('\n        - name: ray-worker\n          resources: {limits: {cpu: "2"}}', " [{name: ray}]")

    assert places(text, "cpus-missing") == [(19, "cpus-missing")]


def test_a_finding_in_an_aliased_part_has_the_line_of_the_alias():
    text = CLUSTER.replace(
        'worker\n          resources: {limits: {cpu: "2"}}', "worker\n          resources: {limits: {cpu: 500m}}"
    )
    text += "  - groupName: large\n    maxReplicas: 1\n    template: *pod\n"

    assert places(text, "cpus-rounded-up") == [(21, "cpus-rounded-up"), (24, "cpus-rounded-up")]


@pytest.mark.parametrize(
    ("of_head", "fix"),
    [
        ("", 'use an image with Ray 2.60.0, or, if the head has 2.59.0 too, write rayVersion: "2.59.0"'),
        ("image: rayproject/ray:2.59.0, ", 'write rayVersion: "2.59.0"'),
    ],
    ids=["the head's image has no version", "the head has the same image"],
)
def test_the_fix_for_an_image_with_another_ray_version_depends_on_the_image_of_the_head(of_head, fix):
    text = CLUSTER.replace("spec:\n  enable", 'spec:\n  rayVersion: "2.60.0"\n  enable')
    text = text.replace("name: ray-worker", "name: ray-worker\n          image: rayproject/ray:2.59.0")
    text = text.replace("- name: ray-head\n          ", f"- {{{of_head}name: ray-head, ").replace(
        '{limits: {cpu: "2"}}\n  worker', '{limits: {cpu: "2"}}}\n  worker'
    )

    found = [each for each in lint_text(text, "") if each.rule == "image-version-differs"]
    assert found[-1].fix == fix


def test_each_document_of_a_file_is_checked():
    text = f"{CLUSTER}---\n{CLUSTER}".replace("minReplicas: 0", "minReplicas: 7")

    assert [(each.document, each.line) for each in lint_text(text, "") if each.rule == "min-above-max"] == [
        (0, 15),
        (1, 37),
    ]


def test_the_output_of_kubectl_get_is_checked():
    items = CLUSTER.replace("minReplicas: 0", "minReplicas: 7").splitlines()
    text = "apiVersion: v1\nkind: List\nitems:\n- " + "\n  ".join(items) + "\n"

    assert places(text, "min-above-max") == [(18, "min-above-max")]


def test_a_list_of_3000_items_is_read_fast():
    items = "- {kind: RayCluster, apiVersion: ray.io/v1}\n" * 3000

    assert len(lint_text(f"kind: List\napiVersion: v1\nitems:\n{items}", "")) == 3000


@pytest.mark.parametrize(
    ("text", "line"), [("a: [1\nb: 2\n", 2), ("a: *none\n", 1)], ids=["invalid YAML", "an undefined alias"]
)
def test_invalid_yaml_is_a_finding_with_its_line(text, line):
    assert [(each.rule, each.line) for each in lint_text(text, "x")] == [("unreadable", line)]


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"\x1f\x8bno"], ids=["no file", "not UTF-8", "not gzip"])
def test_an_unreadable_file_is_a_finding(tmp_path, content):
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_bytes(content)

    assert [each.rule for each in lint_file(path)] == ["unreadable"]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "kind: ConfigMap\napiVersion: v1\n"], ids=["empty", "a comment", "other"]
)
def test_a_file_without_a_cluster_is_reported_as_a_note(text):
    assert [(each.rule, each.severity) for each in lint_text(text, "x")] == [("no-cluster", "note")]


@pytest.mark.parametrize(("second_type", "severity"), [("L4", "note"), ("L40S", "warning")])
def test_pods_that_may_get_a_device_of_another_type_are_a_warning(second_type, severity):
    pod = 'resources: {limits: {cpu: "2", memory: 2Gi, nvidia.com/gpu: "1"}}'
    head, small = CLUSTER.partition("  - groupName: small")[::2]
    group = "  - groupName: NAME\n    labels: {ray.io/accelerator-type: NAME}" + small.replace("&pod", "")
    group = group.replace('resources: {limits: {cpu: "2"}}', pod)
    text = (
        head
        + group.replace("NAME", "L4", 2)
        + group.replace("groupName: NAME", "groupName: two").replace("NAME", second_type)
    )

    found = [each.severity for each in lint_text(text, "demo.yaml") if each.rule == "node-selector-missing"]

    assert found == [severity] * 2


def test_a_number_without_quotes_is_reported_and_other_fields_are_checked():
    text = CLUSTER.replace("minReplicas: 0", "minReplicas: 7\n    rayStartParams: {num-cpus: 4}")

    assert places(text, "invalid-field", "min-above-max") == [(15, "min-above-max"), (16, "invalid-field")]


def test_a_wrong_amount_hides_no_other_mistake():
    text = SOUND_CLUSTER.replace("memory: 32Gi", "memory: 28GiB").replace("2.60.0-py311-gpu", "2.59.0-py311-gpu")
    text = text.replace("  enableInTreeAutoscaling: true\n", "")

    found = {each.rule for each in lint_text(text, "x")}
    assert found >= {"invalid-field", "ray-versions-differ", "autoscaler-options-unused", "never-scales-up"}


@pytest.mark.parametrize(
    ("old", "new", "unchecked"),
    [
        ("memory: 32Gi", "memory: lots", ("template", "spec", "containers", 0, "resources", "limits", "memory")),
        ("      template:\n", "      pod:\n", ("template",)),
        ("- groupName: l4\n      replicas: 0", "- replicas: 0", ("groupName",)),
        (
            "          containers:",
            "          containers: none\n          initContainers:",
            ("template", "spec", "containers"),
        ),
    ],
    ids=["an amount", "no template", "no name", "a text instead of containers"],
)
def test_the_rules_check_all_parts_except_the_wrong_one(old, new, unchecked):
    start = SOUND_CLUSTER.index("    - groupName: l4")
    text = SOUND_CLUSTER[:start] + SOUND_CLUSTER[start:].replace(old, new, 1).replace(
        "maxReplicas: 9", "maxReplicas: 0"
    )

    found = lint_text(text, "x")

    assert {each.unchecked for each in found} - {None} == {("spec", "workerGroupSpecs", 0, *unchecked)}
    assert {each.rule for each in found} <= {"invalid-field", "misspelled-field", "group-never-starts", "pod-refused"}
    assert [each.rule for each in found].count("group-never-starts") == 1


def test_a_misspelled_kind_hides_no_other_mistake():
    text = SOUND_CLUSTER.replace("kind: RayCluster", "kind: Raycluster").replace("maxReplicas: 9", "maxReplicas: 0")

    assert [each.rule for each in lint_text(text, "x")] == ["invalid-field", "group-never-starts"]


def test_the_fix_for_a_missing_device_type_names_the_label_and_the_resource_that_trials_request():
    text = SOUND_CLUSTER.replace("      labels:\n        ray.io/accelerator-type: L4\n", "")

    (found,) = [each for each in lint_text(text, "x") if each.rule == "device-type-missing"]
    assert "ray.io/accelerator-type: A100" in found.fix
    assert '"accelerator_type:A100": "1"' in found.fix


@pytest.mark.parametrize("parameter", ["num-cpus", "num-gpus", "memory", "resources"])
def test_the_fix_for_a_missing_device_type_uses_the_start_params_if_the_group_states_amounts_there(parameter):
    """KubeRay refuses amounts in both fields."""
    values = {"num-cpus": "8", "num-gpus": "1", "memory": "1000000000", "resources": "'{\"mine\": 1}'"}
    params = json.dumps({parameter: values[parameter]})
    text = SOUND_CLUSTER.replace("      labels:\n        ray.io/accelerator-type: L4\n", "")

    (fix,) = fixes(text.replace("rayStartParams: {}", f"rayStartParams: {params}", 1), "device-type-missing")

    assert "ray.io/accelerator-type: A100" in fix
    assert "1 as accelerator_type:A100 in the JSON of rayStartParams.resources" in fix


def test_the_fix_for_a_missing_device_type_names_no_field_that_an_older_ray_ignores():
    text = SOUND_CLUSTER.replace("      labels:\n        ray.io/accelerator-type: L4\n", "")

    (fix,) = fixes(text.replace('"2.60.0"', '"2.50.0"'), "device-type-missing")

    assert fix.startswith("if trials request the type, write 1 as accelerator_type:A100 in the JSON of rayStartParams")


def test_no_option_of_ray_start_is_called_misspelled():
    options = [name.removeprefix("--") for each in start.params for name in each.opts if name.startswith("--")]
    params = json.dumps(dict.fromkeys(options, "x"))
    text = SOUND_CLUSTER.replace("rayStartParams: {}", f"rayStartParams: {params}", 1)

    assert "start-param-misspelled" not in {each.rule for each in lint_text(text, "x")}


def test_each_option_that_is_suggested_exists_in_ray_start():
    options = {name.removeprefix("--") for each in start.params for name in each.opts}

    assert set(START_PARAMS) <= options


def test_a_wrong_head_does_not_hide_mistakes_in_the_groups():
    text = SOUND_CLUSTER.replace("    template:", "    pod:", 1).replace("maxReplicas: 9", "maxReplicas: 0")

    assert [each.rule for each in lint_text(text, "x")] == ["invalid-field", "group-never-starts"]


def test_values_of_the_chart_of_kuberay_are_explained():
    (found,) = lint_text("head: {rayStartParams: {}}\nworker: {maxReplicas: 3}\n", "values.yaml")

    assert (found.rule, "helm template" in found.message) == ("no-cluster", True)


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
def test_no_value_of_a_field_causes_an_error(kind, place, value):
    try:
        text = changed(kind, {place: {"x": 1} if value is None else value})
    except (TypeError, KeyError, IndexError):
        return

    assert all(each.line <= text.count("\n") + 1 for each in lint_text(text, "x"))


def fixes(text, rule):
    return [each.fix for each in lint_text(text, "demo.yaml") if each.rule == rule]


def test_the_amounts_of_the_head_are_corrected_in_the_field_that_it_uses():
    """KubeRay refuses amounts in both fields."""
    with_resources = SOUND_CLUSTER.replace(
        '    rayStartParams:\n      num-cpus: "0"\n', '    rayStartParams: {}\n    resources: {CPU: "4"}\n', 1
    )

    assert fixes(SOUND_CLUSTER.replace('num-cpus: "0"', 'num-cpus: "4"', 1), "head-runs-trials") == [
        'write num-cpus: "0" under the rayStartParams of the head'
    ]
    assert fixes(with_resources, "head-runs-trials") == ['write CPU: "0" under the resources of the head']
    assert fixes(with_resources.replace('{CPU: "4"}', '{CPU: "0"}'), "head-runs-trials") == []


@pytest.mark.parametrize(
    ("parameters", "fix"),
    [
        ("{}", 'write resources: {HPU: "8"} next to groupName and template'),
        ('{num-cpus: "4"}', "write 8 as HPU in the JSON of rayStartParams.resources"),
    ],
)
def test_devices_that_ray_does_not_count_are_stated_in_the_field_that_the_group_uses(parameters, fix):
    pod = 'ray-worker\n          resources: {limits: {cpu: "2"'
    text = CLUSTER.replace("    template: &pod\n", f"    rayStartParams: {parameters}\n    template: &pod\n")
    text = text.replace(pod, f"{pod}, habana.ai/gaudi: 8")

    assert fix in {finding.fix for finding in lint_text(text, "demo.yaml")}


_COPY = "copy the value from `kubectl get nodes -L nvidia.com/gpu.product`"


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        ("nvidia-l4", "write NVIDIA-L4"),
        ("nvidia-tesla-t4", "write Tesla-T4"),
        ("A100", _COPY),
        ("nvidia-h100-80gb", _COPY),
        ("nvidia-tesla-v100", _COPY),
        ("p100", _COPY),
    ],
)
def test_the_fix_for_a_product_label_names_a_value_only_if_the_model_has_a_single_name(value, fix):
    text = SOUND_CLUSTER.replace("nvidia.com/gpu.product: NVIDIA-L4", f"nvidia.com/gpu.product: {value}")

    assert fixes(text, "node-label-misspelled") == [fix]


@pytest.mark.parametrize("value", ["NVIDIA-A100-SXM4-40GB", "Tesla-V100-SXM2-16GB", "none", "gpu-of-2026"])
def test_a_product_label_that_is_no_name_of_another_platform_is_not_reported(value):
    text = SOUND_CLUSTER.replace("nvidia.com/gpu.product: NVIDIA-L4", f"nvidia.com/gpu.product: {value}")

    assert fixes(text, "node-label-misspelled") == []


@pytest.mark.parametrize(
    ("containers", "is_reported"),
    [
        ("- {name: ray, image: a, PROBE}", False),
        ("- {name: ray, image: a}\n        - {name: other, image: a, PROBE}", True),
    ],
    ids=["Ray's container", "another container"],
)
def test_the_port_metrics_exists_only_in_the_container_of_ray(containers, is_reported):
    probe = "readinessProbe: {httpGet: {port: metrics, path: /metrics}}"
    old = '- name: ray-worker\n          resources: {limits: {cpu: "2"}}'

    text = CLUSTER.replace(old, containers.replace("PROBE", probe))

    assert bool(fixes(text, "probe-invalid")) == is_reported


def test_the_pod_that_submits_a_job_has_no_port_metrics():
    probe = "readinessProbe: {tcpSocket: {port: metrics}}"
    submitter = f"{{spec: {{restartPolicy: Never, containers: [{{name: s, image: a, {probe}}}]}}}}"
    text = JOB.replace("  entrypoint:", f"  submitterPodTemplate: {submitter}\n  entrypoint:")

    assert fixes(text, "probe-invalid") == ["add a port of this name to the container's ports"]


@pytest.mark.parametrize(("suspend", "lines"), [("true", []), ("false", [15])])
def test_the_replicas_of_a_suspended_group_are_not_reported(suspend, lines):
    text = CLUSTER.replace("minReplicas: 0", f"replicas: 7\n    minReplicas: 0\n    suspend: {suspend}")

    assert [line for line, _ in places(text, "replicas-out-of-range")] == lines


def test_a_request_of_huge_pages_that_differs_from_its_limit_is_reported_once():
    text = CLUSTER.replace(
        'ray-worker\n          resources: {limits: {cpu: "2"}}',
        "ray-worker\n          resources: {limits: {cpu: 2, hugepages-2Mi: 1Gi}, requests: {hugepages-2Mi: 2Gi}}",
    )

    assert len(places(text, "device-limit-differs", "request-above-limit")) == 1


def test_a_custom_resource_does_not_replace_the_missing_gpu_of_a_shared_part():
    part = "    template: &pod\n      metadata: {annotations: {gpu-fraction: '0.5'}}\n"
    text = CLUSTER.replace("    template: &pod\n", f'    resources: {{CPU: "4", Custom: "1"}}\n{part}')

    assert len(places(text, "shared-gpu-not-counted")) == 1


def test_a_claim_that_ray_does_not_count_is_reported_only_with_an_autoscaler():
    text = CLUSTER.replace(
        "ray-worker\n          resources: {", "ray-worker\n          resources: {claims: [{name: gpu}], "
    )
    without = text.replace("enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false")

    assert [len(places(each, "claim-not-counted")) for each in (text, without)] == [1, 0]
