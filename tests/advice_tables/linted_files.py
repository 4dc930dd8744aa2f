"""Lints files with planted mistakes, and valid files after changes, for the tables of the linter's advice."""

from tests.advice import Row
from tests.unit.kuberay.planted import capacity, files, groups, pods, sharing, templates
from tests.unit.kuberay.planted.sound import CLUSTER
from tune_policies.kuberay.lint.linting import lint_text

PLANTED = (
    *pods.MISTAKES,
    *groups.MISTAKES,
    *capacity.MISTAKES,
    *sharing.MISTAKES,
    *files.INPUTS,
    *templates.MISTAKES,
)

MISTAKES = {
    **{mistake.claim: mistake for mistake in PLANTED},
    **{f"launcher: {mistake.claim}": mistake for mistake in files.LAUNCHERS},
}


def lint(claim: str, *changes: tuple[str, str]) -> str:
    """Return the findings in the file with a mistake after changes to it: pairs of the old and the new text.

    A change is made after the beginning of the line with the mistake, or else at the first place in the file. It must
    not lead to another error.
    """
    mistake = MISTAKES[claim]
    text, at_line = mistake.text, len("".join(mistake.text.splitlines(keepends=True)[: mistake.line - 1]))
    for old, new in changes:
        where = text.find(old, at_line)
        if where < 0:
            where = text.index(old)
        text = text[:where] + new + text[where + len(old) :]
    before = {finding.rule for finding in lint_text(mistake.text, "a.yaml")}
    found = lint_text(text, "a.yaml")
    assert not [finding for finding in found if finding.severity == "error" and finding.rule not in before]
    return "\n".join(f"{finding.rule}: {finding.message}: {finding.fix}" for finding in found)


def checked(text: str) -> str:
    """Return the findings in a file."""
    found = lint_text(text, "a.yaml")
    return "\n".join(f"{finding.rule}: {finding.message}: {finding.fix}" for finding in found)


def in_cluster(
    *,
    image: str = "rayproject/ray:2.60.0-py311-gpu",
    head: str = "rayproject/ray:2.60.0-py311",
    device: str = 'nvidia.com/gpu: "2"',
    params: str = "{}",
    version: str = "2.60.0",
    autoscaler: str = "v2",
    resized: bool = False,
    pod: str = "",
    container: str = "",
    metadata: str = "",
) -> str:
    """Return the findings in a valid cluster after changes to it and to its group ``l4``."""
    text = CLUSTER.replace("rayproject/ray:2.60.0-py311-gpu", f"'{image}'").replace('"2.60.0"', f'"{version}"')
    text = text.replace("image: rayproject/ray:2.60.0-py311\n", f"image: {head}\n", 1)
    text = text.replace('nvidia.com/gpu: "2"', device).replace("version: v2", f"version: {autoscaler}")
    text = text.replace("rayStartParams: {}", f"rayStartParams: {params}", 1)
    text = text.replace("          nodeSelector:", f"{pod}          nodeSelector:")
    text = text.replace("              image: 'rayproject", f"{container}              image: 'rayproject")
    text = text.replace(
        "        spec:\n          restartPolicy: Never\n          node", f"{metadata}        spec:\n          node"
    )
    if resized:
        groups = '{"groups": {"l4": {"max-cpu": "16", "max-memory": "64Gi", "resize-timeout": 60}}}'
        text = text.replace("purpose: trials", f"ray.io/ippr: '{groups}'")
    return checked(text)


def in_pod(field: str) -> str:
    """Return the findings in a cluster with another field in the pods of the group ``l4``."""
    text = CLUSTER[: CLUSTER.index("          nodeSelector:")]
    rest = CLUSTER[CLUSTER.index("          containers:\n            - name: ray-worker") :]
    return checked(f"{text}          {field}\n{rest}")


def in_container(field: str) -> str:
    return in_cluster(container=f"              {field}\n")


def mounted(fields: str) -> str:
    return in_container(f"volumeMounts: [{{name: data, {fields}}}]")


def requiring(fields: str) -> str:
    """Return the findings in a cluster with a node affinity."""
    required = f"{{nodeSelectorTerms: [{{matchExpressions: [{{key: a, {fields}}}]}}]}}"
    return in_pod(f"affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {required}}}}}")


def annotated(fields: str, device: str = 'nvidia.com/gpu: "2"') -> str:
    """Return the findings in a cluster whose group ``l4`` has annotations of KAI Scheduler."""
    return in_cluster(metadata=f"        metadata: {{annotations: {{{fields}}}}}\n", device=device)


def retired(**fields: object) -> str:
    """Return the findings in a cluster with fields of the retired operator in its group ``l4``."""
    return in_cluster(params="{}" + "".join(f"\n      {name}: {value}" for name, value in fields.items()))


def lint_row(claim: str, advice: str, *changes: tuple[str, str]) -> Row:
    """Return the row of a planted mistake, and of the changes to the file that follow the advice."""
    return Row(f"lint({claim!r})", advice, f"lint({claim!r}, *{changes!r})")
