"""What becomes of ``rayStartParams``: options of ``ray start``, which Ray's autoscaler reads in its own way."""

import json
from collections.abc import Iterator

from tune_policies.lint.finding import Edit
from tune_policies.lint.rule import Found, Rule, RuleSet
from tune_policies.lint.rules.parts import is_autoscaling
from tune_policies.lint.rules.pods import groups_of
from tune_policies.lint.rules.sources import READER, START
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.manifests.start_command import read_start_resources
from tune_policies.values import shorten, suggest

_WHOLE = ("num-cpus", "num-gpus", "memory", "object-store-memory")
OPTIONS = frozenset(
    {"address", "autoscaling-config", "block", "cgroup-path", "dashboard-agent-grpc-port"}
    | {"dashboard-agent-listen-port", "dashboard-host", "dashboard-port", "disable-usage-stats"}
    | {"enable-object-reconstruction", "enable-resource-isolation", "head", "include-dashboard"}
    | {"include-log-monitor", "labels", "labels-file", "log-color", "log-style", "max-worker-port", "memory"}
    | {"metrics-export-port", "min-worker-port", "no-monitor", "no-redirect-output", "node-ip-address"}
    | {"node-manager-port", "node-name", "num-cpus", "num-gpus", "object-manager-port", "object-spilling-directory"}
    | {"object-store-memory", "plasma-directory", "port", "proxy-server-url", "ray-client-server-port"}
    | {"ray-debugger-external", "redis-password", "redis-shard-ports", "redis-username", "resources"}
    | {"runtime-env-agent-port", "system-config", "system-reserved-cpu", "system-reserved-memory", "temp-dir"}
    | {"tracing-startup-hook", "verbose", "worker-port-list"}
)
"""All options of ``ray start``, those that its help hides too, of Ray 2.50 to 2.60."""


def _no_cpus(cluster: ClusterInFile) -> Iterator[Found]:
    for group in groups_of(cluster.spec) if is_autoscaling(cluster.spec) else ():
        amounts = group.container.resources
        is_said = "CPU" in group.spec.resources or "num-cpus" in group.spec.rayStartParams
        if not is_said and "cpu" not in amounts.limits and "cpu" not in amounts.requests:
            yield Found(
                (*group.container_path, "resources"),
                f"{group.name} says nowhere how many CPUs it has",
                "give the first container a limit for cpu, or the group resources.CPU",
            )


def _not_whole(cluster: ClusterInFile) -> Iterator[Found]:
    for group in groups_of(cluster.spec):
        for name in _WHOLE:
            value = group.spec.rayStartParams.get(name)
            if value is not None and not _is_whole(value):
                yield Found(
                    (*group.path, "rayStartParams", name),
                    f"{group.name} has {name} {value!r}, which is no whole number",
                    "write a whole number of bytes" if "memory" in name else 'write a whole number, such as "4"',
                )


def _is_whole(text: str) -> bool:
    try:
        return int(text) >= 0
    except ValueError:
        return False


def _resources_quoted(cluster: ClusterInFile) -> Iterator[Found]:
    for group in groups_of(cluster.spec):
        text = group.spec.rayStartParams.get("resources")
        if text is None or (problem := _problem_of_resources(text, is_autoscaling(cluster.spec))) is None:
            continue
        where = (*group.path, "rayStartParams", "resources")
        amounts = _plain_amounts(text)
        right = None if amounts is None else json.dumps(json.dumps(amounts))
        yield Found(
            where,
            f"{group.name} has the resources {shorten(text)}: {problem}",
            "write the group's resources beside rayStartParams (KubeRay 1.5 and later), or a mapping to whole numbers "
            'in JSON with two pairs of quotes: \'"{\\"Custom\\": 1}"\'',
            () if right is None else (Edit(where, right),),
        )


def _problem_of_resources(text: str, has_autoscaler: bool) -> str | None:
    """Read it as Ray's autoscaler does: without its first and last character, and without backslashes.

    Without an autoscaler only the shell and ``ray start`` read it.
    """
    if not has_autoscaler:
        return None if read_start_resources(text) is not None else "the shell and ray start make nothing of it"
    try:
        found = json.loads(text[1:-1].replace("\\", ""))
    except (ValueError, RecursionError):
        return "Ray's autoscaler cannot read it"
    if not isinstance(found, dict):
        return "it is no mapping"
    wrong = [f"{key} is {value!r}" for key, value in found.items() if not _is_amount(value)]
    return f"amounts must be whole and not negative, but {wrong[0]}" if wrong else None


def _is_amount(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _plain_amounts(text: str) -> dict[str, int] | None:
    """Return what is meant where only the outer pair of quotes is missing."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_sound = isinstance(found, dict) and all(map(_is_amount, found.values()))
    return found if is_sound else None


def _unknown(cluster: ClusterInFile) -> Iterator[Found]:
    for group in groups_of(cluster.spec):
        for name in group.spec.rayStartParams:
            if name not in OPTIONS:
                yield Found(
                    (*group.path, "rayStartParams", name),
                    f"{group.name} has {name!r} in rayStartParams{suggest(name.replace('_', '-'), OPTIONS)}",
                    "write an option of ray start without its dashes in front",
                )


RULES: RuleSet = (
    Rule(
        "no-cpus",
        "error",
        "Ray's autoscaler stops with: Autoscaler failed to detect `CPU` resources.",
        f"{READER} (_get_num_cpus)",
        _no_cpus,
    ),
    Rule(
        "start-param-not-whole",
        "error",
        "Ray's autoscaler and ray start read a whole number there, and stop at anything else.",
        f"{READER} (_get_num_cpus, _get_num_gpus, _get_memory)",
        _not_whole,
    ),
    Rule(
        "start-param-resources",
        "error",
        "Ray's autoscaler and the shell of the pod each take quotes away before they read the JSON.",
        f"{READER} (_get_custom_resources)",
        _resources_quoted,
    ),
    Rule(
        "start-param-unknown",
        "warning",
        "ray start stops at an option that it does not know, so that no pod of the group gets ready.",
        START,
        _unknown,
    ),
)
