"""What the operator refuses of a RayJob."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from tune_policies.lint.kinds import RAY_JOB
from tune_policies.lint.rule import DocumentRule, Found, RuleSet
from tune_policies.lint.rules.parts import at, mapping, numbered
from tune_policies.lint.rules.sources import API, VALIDATION
from tune_policies.manifests.documents import Document, Path
from tune_policies.plain_data import parse_data, parse_json
from tune_policies.values import shorten, suggest

_MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
_OF_SUBMITTER = ("submitterPodTemplate", "submitterConfig")
_CLUSTER = "ray.io/cluster"


def _spec(document: Document) -> Mapping[str, Any]:
    return mapping(at(document.data, ("spec",)))


def _selector(document: Document) -> Iterator[Found]:
    spec = _spec(document)
    selector = mapping(spec.get("clusterSelector"))
    if selector and not selector.get(_CLUSTER):
        message = f"clusterSelector does not name a cluster by {_CLUSTER}"
        yield Found(("spec", "clusterSelector"), message, f"write clusterSelector: {{{_CLUSTER}: NAME}}")
    if selector and spec.get("submissionMode") == "SidecarMode":
        message = "SidecarMode does not work with a cluster that there is"
        yield Found(("spec", "submissionMode"), message, "write submissionMode: K8sJobMode")


def _unused(document: Document) -> Iterator[Found]:
    spec = _spec(document)
    if spec.get("clusterSelector") and spec.get("rayClusterSpec") is not None:
        message = "clusterSelector names a cluster that there is, so rayClusterSpec is not used"
        yield Found(("spec", "rayClusterSpec"), message, "keep one of the two")
    mode = spec.get("submissionMode")
    without = {"HTTPMode": _OF_SUBMITTER, "InteractiveMode": (*_OF_SUBMITTER, "entrypoint")}.get(str(mode), ())
    for name in without:
        if spec.get(name) is not None:
            message = f"{name} is not used in {mode}"
            yield Found(("spec", name), message, "leave it out, or write submissionMode: K8sJobMode")


def _suspend(document: Document) -> Iterator[Found]:
    spec = _spec(document)
    if spec.get("suspend") is True and spec.get("shutdownAfterJobFinishes") is not True:
        message = "suspend needs shutdownAfterJobFinishes: true"
        yield Found(("spec", "suspend"), message, "write shutdownAfterJobFinishes: true")
    if spec.get("suspend") is True and spec.get("clusterSelector"):
        message = "a RayJob on a cluster that there is cannot be suspended"
        yield Found(("spec", "suspend"), message, "leave suspend out, or give the job a rayClusterSpec")


def _time_to_live(document: Document) -> Iterator[Found]:
    spec, path = _spec(document), ("spec", "ttlSecondsAfterFinished")
    seconds = spec.get("ttlSecondsAfterFinished")
    if not isinstance(seconds, int):
        return
    if seconds < 0:
        yield Found(path, f"ttlSecondsAfterFinished is {seconds}", "write 0 or more")
    elif seconds > 0 and spec.get("shutdownAfterJobFinishes") is not True:
        message = f"ttlSecondsAfterFinished is {seconds}, but shutdownAfterJobFinishes is not true"
        yield Found(path, message, "write shutdownAfterJobFinishes: true")


def _deadlines(document: Document) -> Iterator[Found]:
    for name in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        seconds = _spec(document).get(name)
        if isinstance(seconds, int) and seconds <= 0:
            yield Found(("spec", name), f"{name} is {seconds}", "write 1 or more, or leave it out")


def _retries(document: Document) -> Iterator[Found]:
    spec, path = _spec(document), ("spec", "backoffLimit")
    limit = spec.get("backoffLimit")
    if not isinstance(limit, int):
        return
    if limit < 0:
        yield Found(path, f"backoffLimit is {limit}", "write 0 or more")
    elif limit > 0 and spec.get("submissionMode") == "InteractiveMode":
        yield Found(
            path, f"backoffLimit is {limit} in InteractiveMode", "leave it out: nobody can submit again for you"
        )
    elif limit > 0 and spec.get("clusterSelector"):
        message = f"backoffLimit is {limit}, but the job runs on a cluster that there is (refused from KubeRay 1.6 on)"
        yield Found(path, message, "leave it out, or give the job a rayClusterSpec: each retry takes a new cluster")


def _mode(document: Document) -> Iterator[Found]:
    spec = _spec(document)
    mode, path = spec.get("submissionMode"), ("spec", "submissionMode")
    if mode is not None and mode not in _MODES:
        message = f"submissionMode is {mode!r}{suggest(str(mode), _MODES)}"
        yield Found(path, message, f"write {', '.join(_MODES[:-1])} or, from KubeRay 1.5 on, {_MODES[-1]}")
    if mode != "SidecarMode":
        return
    for name in _OF_SUBMITTER:
        if spec.get(name) is not None:
            yield Found(("spec", name), f"{name} does not work in SidecarMode", "leave it out, or write K8sJobMode")
    head = ("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "restartPolicy")
    policy = at(document.data, head)
    if policy not in (None, "", "Never"):
        yield Found(head, f"the head has restartPolicy {policy} in SidecarMode", "write restartPolicy: Never")


def _entrypoint(document: Document) -> Iterator[Found]:
    spec = _spec(document)
    if spec.get("submissionMode") == "InteractiveMode":
        return
    command = spec.get("entrypoint")
    if command is None or (isinstance(command, str) and not command.strip()):
        message = "the RayJob has no entrypoint"
        yield Found(("spec", "entrypoint"), message, "write the command, such as python train.py")


def _json_and_yaml(document: Document) -> Iterator[Found]:
    spec = _spec(document)
    text = spec.get("entrypointResources")
    if isinstance(text, str) and not isinstance(_parsed(parse_json, text), dict):
        message = f"entrypointResources is no mapping in JSON: {shorten(text)}"
        yield Found(("spec", "entrypointResources"), message, "write it as '{\"Custom\": 1}'")
    text = spec.get("runtimeEnvYAML")
    if isinstance(text, str) and text.strip() and not isinstance(_parsed(partial(parse_data, source=""), text), dict):
        message = f"runtimeEnvYAML is no mapping in YAML: {shorten(text)}"
        yield Found(
            ("spec", "runtimeEnvYAML"), message, "write the fields of a runtime environment, such as pip: [torch]"
        )


def _parsed(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError:  # of which DocumentError is one
        return None


def _deletion(document: Document) -> Iterator[Found]:
    spec, path = _spec(document), ("spec", "deletionStrategy")
    if spec.get("deletionStrategy") is None:
        return
    strategy = mapping(spec["deletionStrategy"])
    old, rules = [name for name in ("onSuccess", "onFailure") if name in strategy], strategy.get("deletionRules")
    if rules and old:
        yield Found((*path, old[0]), f"{old[0]} stands beside deletionRules", "keep deletionRules alone")
    elif not rules and len(old) < 2:
        message = "deletionStrategy has no deletionRules, and not both of onSuccess and onFailure"
        yield Found(path, message, "write deletionRules")
    if rules and spec.get("shutdownAfterJobFinishes") is True:
        message = "deletionRules stand beside shutdownAfterJobFinishes: true"
        yield Found((*path, "deletionRules"), message, "leave shutdownAfterJobFinishes out, and write a rule for it")
    policies: list[tuple[Path, object]] = [
        (("deletionRules", number, "policy"), each.get("policy")) for number, each in numbered(rules)
    ]
    policies += [((name, "policy"), at(strategy, (name, "policy"))) for name in old]
    for where, policy in policies:
        if problem := _problem_of_policy(policy, spec):
            yield Found((*path, *where), f"the policy {policy} {problem}", "choose another, such as DeleteCluster")


def _problem_of_policy(policy: object, spec: Mapping[str, Any]) -> str | None:
    if policy in ("DeleteCluster", "DeleteWorkers") and spec.get("clusterSelector"):
        return "does not work on a cluster that there is"
    if policy == "DeleteWorkers" and at(spec, ("rayClusterSpec", "enableInTreeAutoscaling")) is True:
        return "does not work with the autoscaler, which would start the workers again"
    if policy == "DeleteNone" and spec.get("shutdownAfterJobFinishes") is True:
        return "contradicts shutdownAfterJobFinishes: true"
    return None


def _deletion_order(document: Document) -> Iterator[Found]:
    path = ("spec", "deletionStrategy", "deletionRules")
    seen: dict[tuple[str, str], dict[str, int]] = {}
    for number, rule in numbered(at(document.data, path)):
        condition, policy = mapping(rule.get("condition")), str(rule.get("policy"))
        said = [name for name in ("jobStatus", "jobDeploymentStatus") if condition.get(name) is not None]
        if len(said) != 1:
            message = "a deletion rule needs jobStatus or (from KubeRay 1.6 on) jobDeploymentStatus, and not both"
            yield Found((*path, number, "condition"), message, "write jobStatus: SUCCEEDED or FAILED")
            continue
        state, seconds = f"{said[0]} {condition[said[0]]}", condition.get("ttlSeconds", 0)
        by_policy = seen.setdefault((said[0], state), {})
        if policy in by_policy:
            yield Found((*path, number), f"there are two rules {policy} for {state}", "keep one of them")
        elif isinstance(seconds, int):
            by_policy[policy] = seconds
    for (_, state), by_policy in seen.items():
        order = [name for name in ("DeleteWorkers", "DeleteCluster", "DeleteSelf") if name in by_policy]
        for first, later in pairwise(order):
            if by_policy[later] < by_policy[first]:
                message = (
                    f"for {state}, {later} comes after {by_policy[later]} s, before {first} after {by_policy[first]} s"
                )
                yield Found(path, message, f"give {later} at least the ttlSeconds of {first}")


def _rule(name: str, why: str, function: str, check: Any, *, is_warning: bool = False) -> DocumentRule:
    source = function if function.startswith("http") else f"{VALIDATION} ({function})"
    return DocumentRule(name, "warning" if is_warning else "error", why, source, (RAY_JOB,), check)


_REFUSED = "The operator refuses the job."
RULES: RuleSet = (
    _rule("job-selector", _REFUSED, "ValidateRayJobSpec", _selector),
    _rule(
        "job-part-unused",
        "A job on a cluster that there is makes none, and only K8sJobMode has a pod that submits.",
        f"{API} (RayJobSpec.clusterSelector, JobSubmissionMode)",
        _unused,
        is_warning=True,
    ),
    _rule(
        "job-suspend",
        "The operator refuses it: to suspend a job it deletes the job's own cluster.",
        "ValidateRayJobSpec",
        _suspend,
    ),
    _rule(
        "job-time-to-live",
        "The operator refuses the job: the time counts until the cluster is deleted, which nobody asked for.",
        "validateDeletionConfiguration",
        _time_to_live,
    ),
    _rule("job-deadline", _REFUSED, "ValidateRayJobSpec", _deadlines),
    _rule("job-retries", _REFUSED, "ValidateRayJobSpec", _retries),
    _rule(
        "job-mode",
        "The operator does not know how to submit the job, or refuses it.",
        "ValidateRayJobSpec",
        _mode,
    ),
    _rule(
        "job-entrypoint",
        "There is nothing to run, so that the submission fails.",
        f"{API} (RayJobSpec.entrypoint)",
        _entrypoint,
    ),
    _rule(
        "job-json-and-yaml",
        "The fields are texts that are read later: the operator or the submission fails.",
        f"{VALIDATION} (ValidateRayJobSpec)",
        _json_and_yaml,
    ),
    _rule(
        "job-deletion",
        "The operator refuses the job. It also needs the feature gate RayJobDeletionPolicy.",
        "validateDeletionConfiguration, validateLegacyDeletionPolicies",
        _deletion,
    ),
    _rule(
        "job-deletion-order",
        "The operator refuses rules that contradict each other: workers go first, then the cluster, then the job.",
        "validateDeletionRules, validateTTLConsistency",
        _deletion_order,
    ),
)
