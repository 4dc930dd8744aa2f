"""Rules for what a job or a service asks of its cluster: something to run, and a node that holds it."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, Final

from tune_policies.files.plain_data import parse_data, parse_json
from tune_policies.files.yaml_documents import Document, Path
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.lint.rule import (
    RAY_CRON_JOB,
    RAY_JOB,
    RAY_SERVICE,
    DocumentRule,
    Found,
    RuleSet,
    document_type,
)
from tune_policies.kuberay.lint.rules.cluster_parts import API, Group, at, exact, extra, groups_of, mapping
from tune_policies.kuberay.manifests.clusters_in_document import clusters_in
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, HeadGroup
from tune_policies.kuberay.manifests.ray_counts import ray_counts
from tune_policies.values.errors import InvalidResourcesError

_SERVE: Final = "https://docs.ray.io/en/latest/serve/api/doc/ray.serve.schema.RayActorOptionsSchema.html"
_ALL_OF_THE_NODE: Final = Fraction(2**62)
_SHOWS_GPUS: Final = "NVIDIA_VISIBLE_DEVICES"


def _job_path(document: Document) -> Path:
    return ("spec", "jobTemplate") if document_type(document) == RAY_CRON_JOB else ("spec",)


def _entrypoint(document: Document) -> Iterator[Found]:
    path = _job_path(document)
    job = mapping(at(document.data, path))
    own_command = at(job, ("submitterPodTemplate", "spec", "containers", 0, "command"))
    if job.get("submissionMode") == "InteractiveMode" or own_command:
        return
    command = job.get("entrypoint")
    if command is None or (isinstance(command, str) and not command.strip()):
        message = f"the {document_type(document)} has no entrypoint"
        yield Found((*path, "entrypoint"), message, "write the command, such as python train.py")


def _entrypoint_too_large(document: Document) -> Iterator[Found]:
    path = _job_path(document)
    job = mapping(at(document.data, path))
    named = {"entrypointNumCpus": "CPU", "entrypointNumGpus": "GPU"}
    asked = {name: job.get(field) for field, name in named.items()}
    try:
        custom = parse_json(job.get("entrypointResources") or "{}")
    except (TypeError, ValueError):
        custom = {}  # the operator says it
    amounts = _amounts({**asked, **mapping(custom)})
    for cluster in clusters_in(document)[0] if amounts else ():
        if short := _short_of(amounts, cluster):
            field = next((field for field, name in named.items() if name in amounts), "entrypointResources")
            message = f"the entrypoint asks for {_told(amounts)}, and {short}"
            yield Found((*path, field), message, "ask for what one node has: trials ask for theirs by themselves")


def _replica_too_large(document: Document) -> Iterator[Found]:
    path = ("spec", "serveConfigV2")
    asked = list(_replicas(at(document.data, path)))
    for cluster in clusters_in(document)[0] if asked else ():
        for name, amounts in asked:
            if short := _short_of(amounts, cluster):
                message = f"a replica of {name!r} asks for {_told(amounts)}, and {short}"
                yield Found(path, message, "give a group more, or ask for less in the replica's ray_actor_options")


def _replicas(text: object) -> Iterator[tuple[str, dict[str, Fraction]]]:
    """Yield what one replica of each deployment asks of one node, as far as Serve's configuration says it."""
    try:
        config = parse_data(text, "serveConfigV2") if isinstance(text, str) else None
    except ValueError:
        return  # the operator says it
    applications = at(config, ("applications",))
    for application in applications if isinstance(applications, list) else ():
        deployments = at(application, ("deployments",))
        for each in deployments if isinstance(deployments, list) else ():
            deployment = mapping(each)
            bundles = deployment.get("placement_group_bundles")
            if isinstance(bundles, list):  # the replica is in the first, and its own processes in the others
                parts = [_amounts(mapping(bundle)) for bundle in bundles]
                if deployment.get("placement_group_strategy") == "STRICT_PACK":
                    parts = [_sum(parts)]
            else:
                options = mapping(deployment.get("ray_actor_options"))
                named = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus")}
                parts = [_amounts({**mapping(options.get("resources")), **named, "memory": options.get("memory")})]
            for amounts in parts:
                yield str(deployment.get("name")), amounts


def _sum(parts: list[dict[str, Fraction]]) -> dict[str, Fraction]:
    names = {name for part in parts for name in part}
    return {name: sum((part.get(name, Fraction(0)) for part in parts), Fraction(0)) for name in sorted(names)}


def _amounts(asked: Mapping[Any, object]) -> dict[str, Fraction]:
    """Return the amounts that can be judged: of what Ray finds out on a node by itself nothing is known."""
    return {
        name: Fraction(amount)
        for name, amount in asked.items()
        if isinstance(name, str) and ":" not in name and not name.endswith("-head")
        if isinstance(amount, int | float) and not isinstance(amount, bool) and 0 < amount < 2**60
    }


def _told(amounts: Mapping[str, Fraction]) -> str:
    return ", ".join(f"{float(amount):g} {name}" for name, amount in amounts.items())


def _short_of(asked: Mapping[str, Fraction], cluster: ClusterInFile) -> str | None:
    """Return what no node has, in words; ``None``: there is one that holds all, or it cannot be told."""
    nodes = [_node(group) for group in groups_of(cluster.spec)]
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
    asked = group.container.resources
    others = (*asked.limits, *asked.requests, *group.spec.template.metadata.annotations)
    shows_gpus = group.environment.get(_SHOWS_GPUS) or group.pod.runtimeClassName
    has_other_gpus = extra(asked, "claims") or any("gpu" in key and ray_resource(key) is None for key in others)
    try:
        found = {name: Fraction(amount) for name, amount in ray_counts(group.spec).items()}
    except InvalidResourcesError:
        return None
    if "GPU" not in found and (has_other_gpus or (shows_gpus and shows_gpus not in ("void", "none"))):
        return None
    found.setdefault("memory", _ALL_OF_THE_NODE)
    # What the autoscaler does not count, Ray finds on a node that is there.
    for key, amount in group.devices.items():
        resource = ray_resource(key)
        if resource is not None and resource not in found:
            found[resource] = exact(amount) or Fraction(0)
    return found


RULES: RuleSet = (
    DocumentRule(
        "job-entrypoint",
        "error",
        "There is nothing to run, so that the submission fails.",
        f"{API} (RayJobSpec.entrypoint)",
        (RAY_JOB, RAY_CRON_JOB),
        _entrypoint,
    ),
    DocumentRule(
        "job-entrypoint-too-large",
        "error",
        "The job waits for ever for a node that holds its driver, and no trial starts.",
        f"{API} (RayJobSpec.entrypointNumGpus)",
        (RAY_JOB, RAY_CRON_JOB),
        _entrypoint_too_large,
    ),
    DocumentRule(
        "serve-replica-too-large",
        "error",
        "The replica waits for ever for a node that holds it, and the service never gets ready.",
        _SERVE,
        (RAY_SERVICE,),
        _replica_too_large,
    ),
)
