"""Rules for TPU slices on Google's clusters: selectors, topology and hosts must agree, or no slice starts."""

import math
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tune_policies.cluster.tpu_slices import TOPOLOGIES
from tune_policies.kuberay.design.device_plugins import GKE_TPU_TOPOLOGY, GKE_TPU_TYPE
from tune_policies.kuberay.lint.rule import Found, Rule, RuleSet
from tune_policies.kuberay.lint.rules.cluster_parts import Group, exact, workers_of
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, WorkerGroupSpec
from tune_policies.kuberay.manifests.ray_counts import TPU_TYPES
from tune_policies.values.value import suggest

_KEY: Final = "google.com/tpu"

_GKE: Final = "https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus"

_RAY: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/tpu.html"


class _Slices(NamedTuple):
    """A group of TPU slices: where it is, and the chips of one host."""

    at: Group[WorkerGroupSpec]
    chips: int

    @property
    def type(self) -> str | None:
        return TPU_TYPES.get(self.at.pod.nodeSelector.get(GKE_TPU_TYPE, ""))

    @property
    def topology(self) -> str | None:
        topology = self.at.pod.nodeSelector.get(GKE_TPU_TOPOLOGY)
        return topology if topology and re.fullmatch(r"\d{1,4}(x\d{1,4}){1,2}", topology) else None


def _slices(cluster: ClusterInFile) -> Iterator[_Slices]:
    for at in workers_of(cluster.spec):
        chips = exact(at.devices.get(_KEY))
        if chips is not None and chips.denominator == 1:
            yield _Slices(at, int(chips))


def _selectors_missing(cluster: ClusterInFile) -> Iterator[Found]:
    for each in _slices(cluster):
        for key in (GKE_TPU_TYPE, GKE_TPU_TOPOLOGY):
            if key not in each.at.pod.nodeSelector:
                yield Found(
                    (*each.at.pod_path, "nodeSelector"),
                    f"{each.at.name} has TPUs and no node selector {key}",
                    f"add {key} to its nodeSelector",
                )


def _unknown_accelerator(cluster: ClusterInFile) -> Iterator[Found]:
    for each in _slices(cluster):
        name = each.at.pod.nodeSelector.get(GKE_TPU_TYPE)
        if name is not None and name not in TPU_TYPES:
            yield Found(
                (*each.at.pod_path, "nodeSelector", GKE_TPU_TYPE),
                f"Ray does not know the TPU {name!r}{suggest(name, TPU_TYPES)}",
                f"write one of {', '.join(TPU_TYPES)}",
            )


def _unknown_topology(cluster: ClusterInFile) -> Iterator[Found]:
    for each in _slices(cluster):
        topology = each.at.pod.nodeSelector.get(GKE_TPU_TOPOLOGY)
        if each.type is None or topology is None or topology in TOPOLOGIES[each.type]:
            continue
        yield Found(
            (*each.at.pod_path, "nodeSelector", GKE_TPU_TOPOLOGY),
            f"{each.type} has no slices of topology {topology!r}{suggest(topology, TOPOLOGIES[each.type])}",
            "write a topology that Google offers for this TPU, as edges such as 2x4 or 2x2x2",
        )


def _chips_of_a_host(cluster: ClusterInFile) -> Iterator[Found]:
    for each in _slices(cluster):
        allowed = (1, 2, 4, 8) if each.at.spec.numOfHosts == 1 else (4,)
        if each.chips not in allowed:
            yield Found(
                each.at.key_path(_KEY),
                f"a host of {each.at.name} has {each.chips} TPU chips",
                f"write {' or '.join(map(str, allowed))}",
            )


def _hosts_of_a_slice(cluster: ClusterInFile) -> Iterator[Found]:
    for each in _slices(cluster):
        if each.topology is None or each.chips == 0:
            continue
        of_slice = math.prod(map(int, each.topology.split("x")))
        if each.at.spec.numOfHosts * each.chips != of_slice:
            hosts, rest = divmod(of_slice, each.chips)
            yield Found(
                (*each.at.path, "numOfHosts"),
                f"{each.at.name} has {each.at.spec.numOfHosts} hosts of {each.chips} chips, and a slice of topology "
                f"{each.topology} has {of_slice} chips",
                f"write numOfHosts: {hosts}" if hosts and not rest else "write the chips of one host under limits",
            )


RULES: RuleSet = (
    Rule(
        "tpu-selectors-missing",
        "error",
        "Google puts TPU pods on nodes by both selectors, and Ray makes from them the resource that reserves a slice.",
        _RAY,
        _selectors_missing,
    ),
    Rule(
        "unknown-tpu",
        "error",
        "No node has this selector, and Ray makes no resource for the slice.",
        "gke_tpu_accelerator_to_generation in ray.autoscaler._private.kuberay.utils",
        _unknown_accelerator,
    ),
    Rule(
        "unknown-tpu-topology",
        "error",
        "Ray reserves no slice of it, and reads numbers between x's only.",
        "VALID_TPU_TOPOLOGY in ray._private.accelerators.tpu",
        _unknown_topology,
    ),
    Rule(
        "tpu-chips-of-a-host",
        "error",
        "Hosts have so many chips, and a pod gets all chips of its host.",
        _GKE,
        _chips_of_a_host,
    ),
    Rule(
        "tpu-hosts-of-a-slice",
        "error",
        "A slice comes and goes as a whole; with other numbers it never gets ready.",
        _GKE,
        _hosts_of_a_slice,
    ),
)
