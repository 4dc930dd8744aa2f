"""Advice of the linter about misspelled, misplaced, wrong and retired fields."""

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.linted_files import CLUSTER, checked, lint, lint_row, retired

OF_THE_RETIRED_OPERATOR = "apiVersion: cluster.ray.io/v1\nkind: RayCluster\nspec: {headPodType: head, podTypes: []}\n"
OF_CHARTS = "installing a chart of KubeRay"

ROWS = [
    lint_row("an unknown kind", "did you mean 'RayCluster'?", ("RayClutser", "RayCluster")),
    lint_row(
        "groups without the plural", "did you mean 'workerGroupSpecs'?", ("workerGroupSpec:", "workerGroupSpecs:")
    ),
    lint_row("a misspelled nodeSelector", "did you mean 'nodeSelector'?", ("nodeselector", "nodeSelector")),
    lint_row("a number instead of a string", 'write "0", in quotes', ("num-cpus: 0", 'num-cpus: "0"')),
    lint_row("a string instead of a number", "remove the quotes", ('"4"', "4")),
    lint_row("an invalid amount", "write '32G'", ("32GB", "32G"), ("32Gi", "32G")),
    lint_row("a variable that is a number", 'write "1", in quotes', ("value: 1", 'value: "1"')),
    lint_row(
        "a node selector next to the template",
        "so check the indentation",
        ("      nodeSelector: {disk: ssd}\n", ""),
        ("          restartPolicy", "          nodeSelector: {disk: ssd}\n          restartPolicy"),
    ),
    lint_row(
        "a restart policy in lower case", "did you mean 'Never'?", ("restartPolicy: never", "restartPolicy: Never")
    ),
    lint_row("the name of a secret", "did you mean 'secretName'?", ("secret: {name:", "secret: {secretName:")),
    lint_row(
        "a field of the pod in a container",
        "so check the indentation",
        ("              nodeSelector: {a: b}\n", ""),
        ("NVIDIA-L4\n", "NVIDIA-L4\n            a: b\n"),
    ),
    lint_row(
        "resources of the retired chart in a group",
        'write resources: {GPU: "1"} in the group',
        ("rayResources: {GPU: 2}", 'resources: {GPU: "2"}'),
    ),
    Row("retired(maxWorkers=4)", "write maxReplicas", "retired(maxReplicas=4)"),
    Row("retired(minWorkers=1)", "write minReplicas", "retired(minReplicas=1)"),
    Row("retired(podConfig={})", "write template", "retired()"),
    Row(
        "checked(OF_THE_RETIRED_OPERATOR)", "write apiVersion: ray.io/v1 and the fields of KubeRay", "checked(CLUSTER)"
    ),
    Row("checked('head: {rayStartParams: {}}')", "Pipe the output of `helm template` into lint", "checked(CLUSTER)"),
]

NAMES = {
    **named(checked, lint, retired),
    "CLUSTER": CLUSTER,
    "OF_THE_RETIRED_OPERATOR": OF_THE_RETIRED_OPERATOR,
}

ELSEWHERE = {
    "KubeRay's chart": OF_CHARTS,
    "write autoscalerOptions: {": OF_CHARTS,
    "write the parameters of ray start in": OF_CHARTS,
    "write headGroupSpec.headService": OF_CHARTS,
    "install packages in the image": "an image",
}

TABLE = AdviceTable(
    parts=(
        "tune_policies/kuberay/lint/rules/__init__.py",
        "tune_policies/kuberay/lint/linting.py",
        "tune_policies/kuberay/lint/misspelled_fields.py",
        "tune_policies/kuberay/lint/pod_schema.py",
        "tune_policies/kuberay/lint/lenient_reading.py",
        "tune_policies/kuberay/lint/retired_formats.py",
        "tune_policies/kuberay/lint/rule.py",
    ),
    rows=ROWS,
    elsewhere=ELSEWHERE,
    names=NAMES,
)
