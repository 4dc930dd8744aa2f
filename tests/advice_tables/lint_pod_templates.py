"""Advice of the linter about the parts of pod templates, according to the rules of Kubernetes."""

from tests.advice import AdviceTable, Row, named
from tests.advice_tables.linted_files import in_cluster, in_container, in_pod, lint, lint_row, mounted, requiring

ROWS = [
    lint_row("half a GPU as a limit", "request whole devices here", ('"0.5"', '"2"')),
    lint_row("a part of a MiB", "write a whole number", ('"0.5"', '"500"')),
    lint_row(
        "a GPU that is only requested",
        "write nvidia.com/gpu: '2' under limits",
        (
            'limits:\n                  cpu: "8"\n',
            "limits:\n                  cpu: \"8\"\n                  nvidia.com/gpu: '2'\n",
        ),
    ),
    lint_row(
        "more GPUs as a limit than requested",
        "write the same amount under requests and limits",
        ('nvidia.com/gpu: "2"', 'nvidia.com/gpu: "4"'),
    ),
    lint_row("a request above its limit", "or request at most 8", ('cpu: "9"', 'cpu: "8"')),
    lint_row(
        "a request above its limit",
        "raise the limit",
        ('limits:\n                  cpu: "8"\n', 'limits:\n                  cpu: "9"\n'),
    ),
    lint_row("memory without a unit", "write the memory with a unit, such as 16Gi", ("memory: 32\n", "memory: 32Gi\n")),
    lint_row("CPUs with the unit of memory", "write CPUs without a unit, such as 4 or 500m", ("cpu: 8Gi", "cpu: 8")),
    lint_row("a misspelled resource", "did you mean 'cpu'?", ('cpus: "8"', 'cpu: "8"')),
    lint_row(
        "a mount without a volume",
        "add the volume 'data' to spec.volumes",
        (
            "NoSchedule\n          containers:",
            "NoSchedule\n          volumes: [{name: data, emptyDir: {}}]\n          containers:",
        ),
    ),
    lint_row(
        "a mount of the autoscaler without a volume",
        "add the volume 'data' to the volumes of the head",
        (
            "        containers:\n          - name: ray-head",
            "        volumes: [{name: data, emptyDir: {}}]\n        containers:\n          - name: ray-head",
        ),
    ),
    lint_row(
        "two containers with one name", "give each container its own name", ("- name: ray-worker", "- name: ray-2")
    ),
    lint_row("two volumes with one name", "give each volume its own name", ("{name: d}", "{name: e}")),
    lint_row("a port above 65535", "write a number between 1 and 65535", ("70000", "7000")),
    lint_row(
        "a port with a long name",
        "use at most 15 lower-case letters, digits and single dashes",
        ("dashboard-of-ray", "dashboard"),
    ),
    lint_row(
        "a probe without a check",
        "write exactly one of exec, httpGet, tcpSocket, grpc",
        ("{periodSeconds: 5}", "{tcpSocket: {port: 8265}}"),
    ),
    lint_row(
        "a probe of an undeclared port",
        "add a port of this name to the container's ports",
        ("{port: http}}\n", "{port: http}}\n              ports: [{containerPort: 80, name: http}]\n"),
    ),
    lint_row("a probe of a port in quotes", "write port: 8265", ("'8265'", "8265")),
    lint_row(
        "a liveness probe that must succeed twice",
        "write successThreshold: 1",
        ("successThreshold: 2", "successThreshold: 1"),
    ),
    lint_row(
        "a container name in upper case", "use lower-case letters, digits and dashes", ("Ray_Worker", "ray-worker")
    ),
    lint_row(
        "no image",
        "write the image, such as image: rayproject/ray:2.60.0",
        ("- name: ray-worker\n", "- name: ray-worker\n              image: rayproject/ray:2.60.0\n"),
    ),
    lint_row("a toleration with an unneeded value", "remove the value", ("\n              value: a", "")),
    lint_row("a variable with two values", "write only one of them", ("value: b, ", "")),
    lint_row("an image in upper case", "write the name in lower case", ("RayProject", "rayproject")),
    lint_row("a misspelled field of the pod", "write one of metadata.name", ("podIp", "podIP")),
    lint_row(
        "an amount of another container",
        "write a container's name",
        ("containerName: ray,", "containerName: ray-worker,"),
    ),
    lint_row(
        "root that must not be root", "write the ID of another user, such as 1000", ("runAsUser: 0", "runAsUser: 1000")
    ),
    lint_row("permissions without a leading 0", "write 0644, with a leading 0", ("644", "0644")),
    lint_row(
        "a label of the pod that cannot be a file",
        "write one of metadata.annotations, metadata.labels",
        ("metadata.label}", "metadata.labels}"),
    ),
    lint_row("a short access mode", "write one of ReadWriteOnce", ("RWO", "ReadWriteOnce")),
    lint_row("no allowed skew", "write a number of 1 or more", ("maxSkew: 0", "maxSkew: 1")),
    lint_row("a preference above 100", "write a number from 1 to 100", ("weight: 500", "weight: 50")),
    lint_row(
        "a claim with two sources",
        "write either resourceClaimName or resourceClaimTemplateName",
        ("resourceClaimName: a, ", ""),
    ),
    lint_row(
        "a claim that the pod does not have",
        "add 'nic' to spec.resourceClaims",
        (
            "NoSchedule\n          containers:",
            "NoSchedule\n          resourceClaims: [{name: nic, resourceClaimName: a}]\n          containers:",
        ),
    ),
    lint_row("a restarted submitter", "write restartPolicy: Never", ("restartPolicy: Always", "restartPolicy: Never")),
    lint_row(
        "more CPUs than the limit of the autoscaler",
        "or request at most 500m",
        ("requests: {cpu: 1}", "requests: {cpu: 500m}"),
    ),
    lint_row("a volume with two sources", "write only one of them", ("emptyDir: {}, ", "")),
    Row("in_cluster(image=' rayproject/ray:2.60.0-py311-gpu ')", "remove the spaces", "in_cluster()"),
    Row(
        "in_pod('nodeSelector: {a: -b}')",
        "use at most 63 letters, digits, '-', '_' and '.'",
        "in_pod('nodeSelector: {a: b-c_d.e}')",
    ),
    Row(
        "in_container('env: [{name: A, valueFrom: {}}]')",
        "write one source",
        "in_container('env: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]')",
    ),
    Row(
        "in_container('ports: [{name: a, containerPort: 1}, {name: a, containerPort: 2}]')",
        "remove one of them",
        "in_container('ports: [{name: a, containerPort: 1}]')",
    ),
    Row("mounted('mountPath: a:b')", "use a path without ':'", "mounted('mountPath: /a')"),
    Row(
        "mounted('mountPath: /a, subPath: ../b')",
        "use a relative path without '..'",
        "mounted('mountPath: /a, subPath: b')",
    ),
    Row(
        "in_pod('tolerations: [{effect: NoSchedule}]')",
        "write a key, or operator: Exists",
        "in_pod('tolerations: [{key: a, effect: NoSchedule}]'),"
        "in_pod('tolerations: [{operator: Exists, effect: NoSchedule}]')",
    ),
    Row(
        "in_pod('tolerations: [{key: a, tolerationSeconds: 9}]')",
        "write effect: NoExecute, or remove tolerationSeconds",
        "in_pod('tolerations: [{key: a, tolerationSeconds: 9, effect: NoExecute}]'), in_pod('tolerations: [{key: a}]')",
    ),
    Row("requiring('operator: In')", "write values", "requiring('operator: In, values: [b]')"),
    Row("requiring('operator: Exists, values: [b]')", "remove values", "requiring('operator: Exists')"),
    Row("requiring('operator: Gt, values: []')", "write one number", "requiring('operator: Gt, values: [\"1\"]')"),
    Row(
        "in_container('livenessProbe: {exec: {}}')",
        "write command: [sh, -c, …]",
        "in_container('livenessProbe: {exec: {command: [sh, -c, ls]}}')",
    ),
    Row(
        "in_container('livenessProbe: {tcpSocket: {port: 1}, periodSeconds: -1}')",
        "write a number of 0 or more",
        "in_container('livenessProbe: {tcpSocket: {port: 1}, periodSeconds: 0}')",
    ),
]

NAMES = {
    **named(in_cluster, in_container, in_pod, lint, mounted, requiring),
}

TABLE = AdviceTable(
    parts=(
        "tune_policies/kuberay/lint/rules/pod_parts.py",
        "tune_policies/kuberay/lint/rules/ports_and_volumes.py",
        "tune_policies/kuberay/lint/rules/requests_and_limits.py",
    ),
    rows=ROWS,
    elsewhere={},
    names=NAMES,
)
