"""What is safe is written into a text, and nothing else of it changes."""

import stat
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.planted.sound import CLUSTER
from tune_policies.kuberay.lint.fixes import fix_text, fixed_file
from tune_policies.kuberay.lint.linting import lint_text
from tune_policies.values.errors import InvalidResourcesError

TEXT = """\
# The cluster of the team.
apiVersion: ray.io/v1   # stays
kind: RayCluster
metadata: {name: "demo"}
spec:
  rayVersion:   '2.56.0'
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams:
      num-cpus: 0  # takes no work
      labels: "market=spot,zone=a"
      # For all to see.
      dashboard-host: 0.0.0.0
    template: &pod
      spec:
        containers:
          - name: ray-head
            env:
              - {name: NVIDIA_VISIBLE_DEVICES, value: void}
            resources: {limits: {cpu: 2,
                memory: 4Gi}}

  # The workers.
  workerGroupSpecs:
  - groupName: small
    minReplicas: "1"
    maxReplicas: 3
    replicas: 7  # too many
    idleTimeoutSeconds: 30
    rayStartParams:
      resources: '{"Disk": 2}'
    template: *pod
  # The end.
---
# Nothing here.
---
apiVersion: v1
kind: ConfigMap
data:
  text: |
    # a comment that is none
    x: 0777
"""

FIXED = """\
# The cluster of the team.
apiVersion: ray.io/v1   # stays
kind: RayCluster
metadata: {name: "demo"}
spec:
  rayVersion:   '2.56.0'
  enableInTreeAutoscaling: true
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"  # takes no work
      # For all to see.
      dashboard-host: 0.0.0.0
    template: &pod
      spec:
        containers:
          - name: ray-head
            env:
              - {name: NVIDIA_VISIBLE_DEVICES, value: void}
            resources: {limits: {cpu: 2,
                memory: 4Gi}}
    labels:
      market: spot
      zone: a

  # The workers.
  workerGroupSpecs:
  - groupName: small
    minReplicas: 1
    maxReplicas: 3
    replicas: 3  # too many
    idleTimeoutSeconds: 30
    rayStartParams:
      resources: '''{"Disk": 2}'''
    template: *pod
  autoscalerOptions:
    version: v2
  # The end.
---
# Nothing here.
---
apiVersion: v1
kind: ConfigMap
data:
  text: |
    # a comment that is none
    x: 0777
"""


@cache
def fixed_text():
    return fix_text(TEXT, "demo.yaml", unsafe=True)


def test_what_is_mended_changes_and_all_else_stays_as_it_is():
    assert fixed_text().text == FIXED


@pytest.mark.parametrize("name", ["$(id)", "`id`"])
def test_a_name_that_a_shell_would_run_is_left_to_the_user(name):
    resources = f"'{{\"{name}\": 2}}'"

    fixed = fix_text(TEXT.replace("'{\"Disk\": 2}'", resources), "demo.yaml").text

    assert f"      resources: {resources}\n" in fixed


SAFELY_FIXED = (
    TEXT.replace("num-cpus: 0  #", 'num-cpus: "0"  #')
    .replace('minReplicas: "1"', "minReplicas: 1")
    .replace("replicas: 7", "replicas: 3")
    .replace("""'{"Disk": 2}'""", """'''{"Disk": 2}'''""")
)


def test_unasked_only_what_is_safe_changes():
    assert fix_text(TEXT, "demo.yaml").text == SAFELY_FIXED


def test_a_second_run_finds_nothing_more_to_mend():
    again = fix_text(fixed_text().text, "demo.yaml", unsafe=True)

    assert (again.changes, again.text) == ((), fixed_text().text)


@pytest.mark.parametrize("ray", ["2.50.0", "2.60.0"])
def test_chips_of_neuron_are_not_taken_for_cores(ray):
    text = CLUSTER.replace('nvidia.com/gpu: "2"', 'aws.amazon.com/neuron: "2"').replace("2.60.0", ray)

    (found,) = [each for each in lint_text(text, "demo.yaml") if each.rule == "device-not-counted"]
    assert ("the cores of its 2 Neuron chips" in found.fix, found.edits) == (True, ())


@pytest.mark.parametrize(("ray", "written"), [("2.50.0", False), ("2.51.0", True)])
def test_resources_of_a_group_are_written_only_where_its_ray_reads_them(ray, written):
    text = CLUSTER.replace('nvidia.com/gpu: "2"', 'habana.ai/gaudi: "2"').replace("2.60.0", ray)

    fixed = fix_text(text, "demo.yaml", unsafe=True)

    assert ("HPU:" in fixed.text) == written


def test_what_was_mended_is_told_with_its_line():
    told = [(each.line, each.rule) for each in fix_text(plain(), "demo.yaml").changes]

    assert told == [(8, "replicas-outside")]


def test_of_what_was_mended_nothing_is_found():
    mended = {each.rule for each in fixed_text().changes}

    assert not {each.rule for each in lint_text(fixed_text().text, "demo.yaml")} & mended


@settings(max_examples=10, deadline=None)
@given(st.integers(0, len(TEXT)), st.text(alphabet=" \t\n:-{}[]&*!|>'\"#a0%@", max_size=4), st.integers(0, 30))
def test_whatever_is_typed_into_a_text_a_second_run_changes_nothing(place, typed, lost):
    once = fix_text(TEXT[:place] + typed + TEXT[place + lost :], "demo.yaml", unsafe=True)

    assert fix_text(once.text, "demo.yaml", unsafe=True) == (once.text, ())


SHARED = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: demo}
spec:
  headGroupSpec: {template: {spec: {containers: [{name: ray}]}}}
  workerGroupSpecs:
  - &small
    groupName: small
    replicas: 9
    maxReplicas: 3
    template: {spec: {containers: [{name: ray}]}}
  - <<: *small
    groupName: large
    maxReplicas: 12
"""


def test_a_part_that_others_use_by_its_anchor_is_left_alone():
    assert "replicas: 9" in fix_text(SHARED, "demo.yaml").text


def plain(replicas="replicas: 9"):
    return f"""\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {{name: demo}}
spec:
    headGroupSpec: {{template: {{spec: {{containers: [{{name: ray}}]}}}}}}
    workerGroupSpecs:
        -   groupName: small
            {replicas}
            maxReplicas: 3
            template:
                spec:
                    containers: [{{name: ray,
                        args: [a,
                               b]}}]   # in lines
"""


FORMS = {
    "four blanks and a flow over lines": lambda text: text,
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "no line end at the end": lambda text: text.rstrip("\n"),
    "blank lines and comments": lambda text: text.replace(
        "\n    workerGroup", "\n\n    # The workers.\n\n    workerGroup"
    ),
    "a long line": lambda text: text + "# " + "x " * 200 + "\n",
    "markers of documents": lambda text: f"---\n{text}...\n",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_the_form_of_a_text_stays(form):
    assert fix_text(form(plain()), "demo.yaml").text == form(plain("replicas: 3"))


WRITTEN = [
    ("resources: {gpu: '2'}", 'resources: {GPU: "2"}'),
    ("resources: {gpu: '2', tpu: '4'}", 'resources: {GPU: "2", TPU: "4"}'),
    ("resources:\n        gpu: '2'  # two", 'resources:\n        GPU: "2"'),
    ("resources:\n        gpu: '2'\n        other: '1'", "resources:\n        other: '1'\n        GPU: \"2\""),
    ("rayStartParams:\n        labels: zone=a", "rayStartParams:\n        {}"),
    ("rayStartParams: {labels: zone=a}", "rayStartParams: {}"),
]


@pytest.mark.parametrize(("given", "fixed"), WRITTEN)
def test_an_entry_is_added_renamed_and_removed_in_the_form_of_its_mapping(given, fixed):
    before, _, after = CLUSTER.rpartition("rayStartParams: {}")

    assert f"      {fixed}\n" in fix_text(f"{before}{given}{after}", "demo.yaml", unsafe=True).text


def test_a_file_keeps_its_mode_and_stays_a_link(tmp_path):
    path, link = tmp_path / "demo.yaml", tmp_path / "link.yaml"
    path.write_text(plain())
    path.chmod(0o640)
    link.symlink_to(path)

    fixed_file(link).write()

    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == (plain("replicas: 3"), 0o640)
    assert link.is_symlink()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["demo.yaml", "link.yaml"]


def test_a_file_with_nothing_to_mend_is_not_written(tmp_path):
    path = tmp_path / "demo.yaml"
    path.write_text(plain("replicas: 3"))
    before = path.stat()

    fixed_file(path).write()

    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [("-", b"", "piped"), ("demo.yaml.gz", b"\x1f\x8b", "gzipped"), ("long.yaml", b"---\n" * 50_001, "50,000 lines")],
    ids=["piped in", "gzipped", "long"],
)
def test_what_cannot_be_written_is_refused(tmp_path, name, content, told):
    path = tmp_path / name
    path.write_bytes(content)

    with pytest.raises(InvalidResourcesError, match=told):
        fixed_file(path if name != "-" else type(path)("-"))
