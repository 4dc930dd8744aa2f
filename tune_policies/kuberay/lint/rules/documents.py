"""Rules for what stands around a cluster: slips of the pen in the names of fields, and what a job is to run.

The API server refuses an unknown field or drops it without a word. Only the definitions have all fields. But a name
that is nearly one of the fields below, which decide what Ray sees of a cluster, is wrong in any case. No field of the
official definitions is taken for a slip.
"""

import difflib
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from tune_policies.files.plain_data import parse_json
from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.lint.rule import (
    RAY_CLUSTER,
    RAY_CRON_JOB,
    RAY_JOB,
    RAY_SERVICE,
    VALUES,
    Found,
    RuleBook,
    document_type,
)
from tune_policies.kuberay.lint.rules.cluster_parts import API, Group, at, exact, groups_of, mapping
from tune_policies.kuberay.lint.rules.devices import has_other_gpus
from tune_policies.kuberay.reading.chart_values import unknown_keys
from tune_policies.kuberay.reading.documents import clusters_in
from tune_policies.kuberay.reading.kuberay_models import (
    AutoscalerOptions,
    ClusterInFile,
    Container,
    ContainerResources,
    HeadGroup,
    PodSpec,
    PodTemplate,
    RayClusterSpec,
    Toleration,
    WorkerGroupSpec,
)
from tune_policies.kuberay.reading.ray_counts import ray_counts
from tune_policies.values.errors import InvalidResourcesError

RULES: Final = RuleBook()

_NEAR: Final = 0.88
"""How alike two names are that differ by a slip: an ending, a letter too many, two that changed places."""


class _Part(NamedTuple):
    """A part of a manifest: its fields, and those of them that are parts themselves, or lists of parts."""

    fields: frozenset[str]
    parts: "Mapping[str, _Part]"


def _part(*fields: str, model: type[BaseModel] | None = None, **parts: _Part) -> _Part:
    return _Part(frozenset({*fields, *parts, *(model.model_fields if model else ())}), parts)


_CONTAINER: Final = _part(
    *("command", "args", "volumeMounts", "envFrom", "ports", "lifecycle"),
    model=Container,
    resources=_part("claims", model=ContainerResources),
)
_POD: Final = _part(
    *("affinity", "volumes", "initContainers", "serviceAccountName", "priorityClassName", "imagePullSecrets"),
    model=PodSpec,
    containers=_CONTAINER,
    tolerations=_part("tolerationSeconds", model=Toleration),
)
_TEMPLATE: Final = _part(model=PodTemplate, spec=_POD)
_CLUSTER: Final = _part(
    model=RayClusterSpec,
    autoscalerOptions=_part("resources", "env", "envFrom", model=AutoscalerOptions),
    headGroupSpec=_part(model=HeadGroup, template=_TEMPLATE),
    workerGroupSpecs=_part("scaleStrategy", model=WorkerGroupSpec, template=_TEMPLATE),
)
_JOB: Final = _part(
    *("entrypoint", "runtimeEnvYAML", "submissionMode", "clusterSelector", "shutdownAfterJobFinishes"),
    *("ttlSecondsAfterFinished", "entrypointNumCpus", "entrypointNumGpus", "entrypointResources"),
    *("activeDeadlineSeconds", "backoffLimit", "submitterPodTemplate", "suspend"),
    rayClusterSpec=_CLUSTER,
)
_SPECS: Final = {
    RAY_CLUSTER: _CLUSTER,
    RAY_JOB: _JOB,
    RAY_CRON_JOB: _part("schedule", "suspend", jobTemplate=_JOB),
    RAY_SERVICE: _part("serveConfigV2", rayClusterConfig=_CLUSTER),
}


def misspelled_fields(manifest: Document) -> Iterator[tuple[Path, str]]:
    """Yield where a manifest of KubeRay's has a field with a slip of the pen, and what is meant."""
    part = _SPECS.get(document_type(manifest) or "")
    if part is not None:
        yield from _misspelled(manifest.data.get("spec"), part, ("spec",))


def _misspelled(data: Any, part: _Part, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(data, list):
        for number, each in enumerate(data):
            yield from _misspelled(each, part, (*path, number))
    elif isinstance(data, Mapping):
        for key, value in data.items():
            if key in part.parts:
                yield from _misspelled(value, part.parts[key], (*path, key))
            elif isinstance(key, str) and key not in part.fields and (meant := _meant(key, part.fields)):
                yield (*path, key), f"unknown field {key!r}; did you mean {meant!r}?"


def _meant(name: str, fields: frozenset[str]) -> str | None:
    by_plain = {_plain(field): field for field in sorted(fields)}
    near = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=_NEAR)
    return by_plain[near[0]] if near else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


@RULES.of_documents(
    (VALUES,), "chart-key-unknown", "note", "https://github.com/ray-project/kuberay/tree/v1.7.0/helm-chart/ray-cluster"
)
def _unknown_key(document: Document) -> Iterator[Found]:
    """Helm ignores values that no template names. This rule knows the keys of the chart's versions up to 1.7."""
    for path, near in unknown_keys(document.data):
        yield Found(path, f"{path[-1]} is nothing that the chart reads{near}", "leave it out, or correct the name")


def _job_path(document: Document) -> Path:
    return ("spec", "jobTemplate") if document_type(document) == RAY_CRON_JOB else ("spec",)


@RULES.of_documents((RAY_JOB, RAY_CRON_JOB), "job-entrypoint", "error", f"{API} (RayJobSpec.entrypoint)")
def _entrypoint(document: Document) -> Iterator[Found]:
    """There is nothing to run, so the submission fails."""
    path = _job_path(document)
    job = mapping(at(document.data, path))
    own_command = at(job, ("submitterPodTemplate", "spec", "containers", 0, "command"))
    if job.get("submissionMode") == "InteractiveMode" or own_command:
        return
    command = job.get("entrypoint")
    if command is None or (isinstance(command, str) and not command.strip()):
        message = f"the {document_type(document)} has no entrypoint"
        yield Found((*path, "entrypoint"), message, "write the command, such as python train.py")


@RULES.of_documents(
    (RAY_JOB, RAY_CRON_JOB), "job-entrypoint-too-large", "error", f"{API} (RayJobSpec.entrypointNumGpus)"
)
def _entrypoint_too_large(document: Document) -> Iterator[Found]:
    """The job waits for ever for a node that holds its driver, and no trial starts."""
    path = _job_path(document)
    job = mapping(at(document.data, path))
    fields = {"CPU": "entrypointNumCpus", "GPU": "entrypointNumGpus"}
    given = job.get("entrypointResources")
    try:
        custom = mapping(parse_json(given)) if isinstance(given, str) else {}
    except ValueError:
        custom = {}  # the operator says it
    asked = {
        name: Fraction(amount)
        for name, amount in {**{name: job.get(field) for name, field in fields.items()}, **custom}.items()
        # Of what Ray finds out on a node by itself nothing is known.
        if ":" not in name and not name.endswith("-head")
        if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < 2**60
    }
    for cluster in clusters_in(document)[0] if asked else ():
        if short := _short_of(asked, cluster):
            field = next((field for name, field in fields.items() if name in asked), "entrypointResources")
            told = ", ".join(f"{float(amount):g} {name}" for name, amount in asked.items())
            fix = "ask for what one node has: trials ask for theirs by themselves"
            yield Found((*path, field), f"the entrypoint asks for {told}, and {short}", fix)


def _short_of(asked: Mapping[str, Fraction], cluster: ClusterInFile) -> str | None:
    """Return what no node has, in words; ``None``: there is one that holds all, or it cannot be told."""
    nodes = [_node(group) for group in groups_of(cluster)]
    known = [node for node in nodes if node is not None]
    if len(known) < len(nodes) or any(all(node.get(name, 0) >= asked[name] for name in asked) for node in known):
        return None
    for name, amount in asked.items():
        most = max(node.get(name, Fraction(0)) for node in known)
        if most < amount:
            return f"no node has more than {float(most):g} {name}"
    return "no node has all of it"


def _node(group: Group[HeadGroup]) -> dict[str, Fraction] | None:
    """Return what Ray counts on a node of a group; ``None``: that is not told."""
    shows_gpus = group.environment.get("NVIDIA_VISIBLE_DEVICES") or group.pod.runtimeClassName
    try:
        found = {name: Fraction(amount) for name, amount in ray_counts(group.spec).items()}
    except InvalidResourcesError:
        return None
    if "GPU" not in found and (has_other_gpus(group) or (shows_gpus and shows_gpus not in ("void", "none"))):
        return None
    # What the autoscaler does not count, Ray finds on a node that is there.
    for key, amount in group.devices.items():
        resource = ray_resource(key)
        if resource is not None and resource not in found:
            found[resource] = exact(amount) or Fraction(0)
    return found
