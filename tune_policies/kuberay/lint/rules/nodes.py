"""Rules for the nodes on which pods with devices land, and the GPUs of cloud machines whose names tell them."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS
from tune_policies.kuberay.lint.finding import Edit
from tune_policies.kuberay.lint.rule import Found, Rule, RuleSet
from tune_policies.kuberay.lint.rules.cluster_parts import Group, Taint, exact, extra, groups_of, is_on_gke, workers_of
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, HeadGroup
from tune_policies.kuberay.manifests.ray_counts import device_type, ray_counts
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import suggest

_LABELS: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/label-based-scheduling.html"

_MACHINE_LABELS: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

_EXTENDED: Final = (
    "https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#extendedresourcetoleration"
)


MACHINES_SOURCE: Final = (
    "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, "
    "https://cloud.google.com/compute/docs/accelerator-optimized-machines"
)

_G = {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "16xlarge": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_AWS: Final = {
    "g4dn": ("T4", {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "16xlarge": 1, "12xlarge": 4, "metal": 8}),
    "g5": ("A10G", _G),
    "g6": ("L4", _G),
    "g6e": ("L40S", _G),
    "p3": ("V100", {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8}),
    "p3dn": ("V100", {"24xlarge": 8}),
    "p4d": ("A100-40G", {"24xlarge": 8}),
    "p4de": ("A100-80G", {"24xlarge": 8}),
    "p5": ("H100", {"4xlarge": 1, "48xlarge": 8}),
    "p5e": ("H200", {"48xlarge": 8}),
    "p5en": ("H200", {"48xlarge": 8}),
}
_G2: Final = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
"""GPUs of Google's ``g2-standard`` by its CPUs."""
_GOOGLE: Final = {
    "a2-highgpu": "A100-40G",
    "a2-megagpu": "A100-40G",
    "a2-ultragpu": "A100-80G",
    "a3-highgpu": "H100",
    "a3-megagpu": "H100",
    "a3-edgegpu": "H100",
    "a3-ultragpu": "H200",
}
"""Types by family; the number of GPUs ends the name, as in ``a2-highgpu-4g``."""


class Machine(NamedTuple):
    """A type of machine.

    Attributes:
        name: As its cloud calls it.
        gpus: How many it has.
        accelerator_type: Ray's name of their type.
    """

    name: str
    gpus: int
    accelerator_type: str


def machine_called(name: str) -> Machine | None:
    """Return the machine of a name, such as ``g5.12xlarge``; ``None``: it is none of these."""
    family, _, size = name.partition(".")
    if family in _AWS and size in _AWS[family][1]:
        return Machine(name, _AWS[family][1][size], _AWS[family][0])
    if (found := re.fullmatch(r"(a[23]-[a-z]+gpu)-(\d{1,2})g", name)) and found[1] in _GOOGLE:
        return Machine(name, int(found[2]), _GOOGLE[found[1]])
    if (found := re.fullmatch(r"g2-standard-(\d{1,2})", name)) and int(found[1]) in _G2:
        return Machine(name, _G2[int(found[1])], "L4")
    return None


def _taint_not_tolerated(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for key in at.devices:
            if key == "google.com/tpu":
                continue  # only Google's clusters have them, and those add the toleration
            taint = taint_of(at, key)
            known = at.pod.tolerations
            near = suggest(taint.key, [each.key for each in known if each.key])
            # Whoever tolerates another taint knows the taints of the nodes, unless the name is nearly the same.
            if at.tolerates(taint) or (known and not near):
                continue
            toleration = {"key": taint.key, "operator": "Exists", "effect": "NoSchedule"}
            path = (*at.pod_path, "tolerations")
            told = f"{taint.key}{'' if taint.value is None else f'={taint.value}'}:{taint.effect}"
            yield Found(
                path if known else at.pod_path,
                f"{at.name} has {key} and does not tolerate the taint {told}",
                f"add a toleration for {told}, if its nodes have the taint",
                (Edit((*path, len(known)), toleration) if known else Edit(path, [toleration]),),
            )


def taint_of(at: Group[HeadGroup], key: str) -> Taint:
    """Return the taint that nodes with such devices have by custom; on Google's clusters its value is known."""
    maker = key.partition("/")[0]
    plugins = (each for each in DEVICE_PLUGINS if each.key and each.key.partition("/")[0] == maker)
    name = next((each.taint for each in plugins if each.taint), key)
    return Taint(name, "present" if is_on_gke(at) and name == "nvidia.com/gpu" else None)


def _type_contradicted(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        told, there = _told_type(at), _selected_type(at)
        if told and there and not _is_kind_of(told, there) and not _is_kind_of(there, told):
            yield Found(
                (*at.path, "labels", ACCELERATOR_TYPE) if ACCELERATOR_TYPE in at.spec.labels else at.path,
                f"Ray is told that {at.name} has {told}, and its node selector takes nodes with {there}",
                "write the type that its nodes have in both places",
            )


def _is_kind_of(name: str, of: str) -> bool:
    """Return whether a type is another one, or a variant of it, as A100-80G is one of A100."""
    return f"{name}-".startswith(f"{of}-")


def _told_type(at: Group[HeadGroup]) -> str | None:
    try:
        counted = ray_counts(at.spec)
    except InvalidResourcesError:
        counted = {}
    return device_type(counted, at.spec.labels, {})


def _selected_type(at: Group[HeadGroup]) -> str | None:
    machine = _machine_of(at)
    return device_type({}, {}, at.pod.nodeSelector) or (machine.accelerator_type if machine else None)


def _machine_of(at: Group[HeadGroup]) -> Machine | None:
    names = [at.pod.nodeSelector.get(key, "") for key in _MACHINE_LABELS]
    return next((found for name in names if (found := machine_called(name))), None)


def _more_gpus_than_machine(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        machine, asked = _machine_of(at), exact(at.devices.get("nvidia.com/gpu"))
        if machine is not None and asked is not None and asked > machine.gpus:
            yield Found(
                at.key_path("nvidia.com/gpu"),
                f"{at.name} asks for {asked} GPUs on a {machine.name}, which has {machine.gpus}",
                f"ask for {machine.gpus} at the most, or select a larger machine",
            )


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
    Rule(
        "device-type-contradicted",
        "warning",
        "Trials that ask for the type get nodes with another.",
        _LABELS,
        _type_contradicted,
    ),
    Rule(
        "more-gpus-than-machine",
        "warning",
        "No such machine holds the pod, unless its device plugin counts a GPU several times.",
        MACHINES_SOURCE,
        _more_gpus_than_machine,
    ),
)
