"""Rules for the nodes on which pods with devices land."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from tune_policies.clusters.device_plugins import DEVICE_PLUGINS
from tune_policies.lint.finding import Edit
from tune_policies.lint.rule import Found, Rule, RuleSet
from tune_policies.lint.rules.cluster_parts import (
    extra,
    groups_of,
    workers_of,
)
from tune_policies.manifests.cluster_in_file import ClusterInFile
from tune_policies.values import suggest

_EXTENDED: Final = (
    "https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration"
)


def _taint_not_tolerated(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for key in at.devices:
            if key == "google.com/tpu":
                continue  # only Google's clusters have them, and those add the toleration
            taint = _taint_of(key)
            known = at.pod.tolerations
            near = suggest(taint, [each.key for each in known if each.key])
            # Whoever tolerates another taint knows the taints of the nodes, unless the name is nearly the same.
            if at.tolerates(taint) or (known and not near):
                continue
            toleration = {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
            path = (*at.pod_path, "tolerations")
            yield Found(
                path if known else at.pod_path,
                f"{at.name} has {key} and does not tolerate the taint {taint}",
                f"add a toleration for {taint}, if its nodes have the taint",
                (Edit((*path, len(known)), toleration) if known else Edit(path, [toleration]),),
            )


def _taint_of(key: str) -> str:
    maker = key.partition("/")[0]
    plugins = (each for each in DEVICE_PLUGINS if each.key and each.key.partition("/")[0] == maker)
    return next((each.taint for each in plugins if each.taint), key)


def _any_node(cluster: ClusterInFile) -> Iterator[Found]:
    groups = list(workers_of(cluster.spec))
    keys = Counter(key for at in groups for key in at.devices)
    for at in groups:
        for key in at.devices:
            has_place = at.pod.nodeSelector or extra(at.pod, "affinity")
            if keys[key] > 1 and not has_place:
                yield Found(
                    at.pod_path,
                    f"{at.name} takes any node with {key}, those of other groups too",
                    "add a nodeSelector for the device type of its nodes",
                )


RULES: RuleSet = (
    Rule(
        "taint-not-tolerated",
        "note",
        "Nodes with devices are often tainted with the name of the device, so that pods without toleration wait for "
        "ever. Google's and some other clusters add the toleration by themselves.",
        _EXTENDED,
        _taint_not_tolerated,
    ),
    Rule(
        "any-node-with-devices",
        "note",
        "Where nodes have different devices, trials get now these, now those.",
        "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/",
        _any_node,
    ),
)
