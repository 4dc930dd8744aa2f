"""Rules for device amounts in the resource requests of pods and of Ray, and for TPU slices."""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tune_policies.cluster.tpu_slices import TOPOLOGIES, SliceShape
from tune_policies.kuberay.design.device_plugins import (
    DEVICE_PLUGINS,
    GKE_TPU_TOPOLOGY,
    GKE_TPU_TYPE,
    TPU_KEY,
    TPU_TYPES,
    ray_resource,
)
from tune_policies.kuberay.lint.cluster_parts import (
    Group,
    exact,
    extra,
    groups_of,
    workers_of,
)
from tune_policies.kuberay.lint.rule import Found, RuleBook
from tune_policies.kuberay.reading.kuberay_models import ClusterInFile, HeadGroup, WorkerGroupSpec
from tune_policies.kuberay.reading.ray_counts import NEURON_CHIPS, ray_counts
from tune_policies.kuberay.reading.shared_gpu_memory import STRATEGIES, gpus_given, has_misplaced_kai_part
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import counted, shorten_names, suggest

RULES: Final = RuleBook()

_KUBERNETES: Final = "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources"

_READER: Final = "ray.autoscaler._private.kuberay.autoscaling_config"

_GPU_PAGE: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/gpu.html"

_SPELLINGS: Final = {name.lower(): name for name in ("CPU", "GPU", "TPU", "HPU", "NPU")}


_DEFAULTS_OF_HAMI: Final = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
_KEYS: Final = (*(plugin.key for plugin in DEVICE_PLUGINS if plugin.key is not None), *_DEFAULTS_OF_HAMI)
_NEAR_KEY: Final = 0.8
_OF_HAMI: Final = re.compile(r"[\w.-]+/(\w*(mem|cores|memory|core)(-percentage)?|priority)")
"""Matches the resources of HAMi, whose administrators can change their names."""

_BESIDE_DEVICES: Final = ("gpu.intel.com/tiles", "gpu.intel.com/millicores", "gpu.intel.com/memory.max")
"""Resources that are no devices: the parts of Intel GPUs that a pod requests in addition to the GPU.

Source: https://github.com/intel/platform-aware-scheduling/tree/master/gpu-aware-scheduling
"""


@RULES.of_each(groups_of, "device-resource-misspelled", "error", _KUBERNETES)
def _device_misspelled(at: Group[HeadGroup]) -> Iterator[Found]:
    """No node has the resource, so Kubernetes never schedules the pod."""
    for path, container in at.containers:
        for key in {**container.resources.limits, **container.resources.requests}:
            domain, _, _ = key.partition("/")
            # Administrators can rename the resources of HAMi, but a name similar to a default one is a mistake.
            is_of_hami = _OF_HAMI.fullmatch(key) and (key in _DEFAULTS_OF_HAMI or domain != "nvidia.com")
            # ``ray_resource`` accepts every key that ends in ``gpu``. A domain without a dot, as in ``nvidia/gpu``, is
            # a misspelling.
            is_other = key == "nvidia.com/priority" or key in _BESIDE_DEVICES
            is_known = is_of_hami or is_other or (ray_resource(key) is not None and "." in domain)
            if "/" not in key or is_known:
                continue
            near = difflib.get_close_matches(key.lower(), _KEYS, n=1, cutoff=_NEAR_KEY)
            if near:
                section = "limits" if key in container.resources.limits else "requests"
                message = f"{at} has the unknown resource {key!r}; did you mean {near[0]!r}?"
                yield Found((*path, "resources", section, key), message, f"write {near[0]}")


@RULES.of_each(groups_of, "device-not-counted", "error", f"_get_num_gpus in {_READER}")
def _device_not_counted(at: Group[HeadGroup]) -> Iterator[Found]:
    """The autoscaler counts only google.com/tpu and keys that end in gpu.

    It adds no node of this group for a trial that needs the device, so the trial stays pending indefinitely.
    """
    if not at.is_autoscaling:
        return  # Ray counts the devices of a node when the node starts
    try:
        counted = ray_counts(at.spec)
    except InvalidResourcesError:
        return  # another rule reports the wrong amount
    for key, amount in at.devices.items():
        resource = ray_resource(key)
        if resource is not None and resource not in counted:
            message = f"Ray's autoscaler does not count {key}, so it assumes that {at} has no {resource}"
            yield Found(at.key_path(key), message, _how_to_state(at, resource, key, str(amount)))


def _how_to_state(at: Group[HeadGroup], resource: str, key: str, amount: str) -> str:
    """Return a correction that writes the amount of a resource into the field that the group already uses."""
    # ``num-gpus`` works in all versions of Ray. KubeRay refuses it only next to ``resources``.
    if resource == "GPU" and not at.spec.resources:
        return f'write num-gpus: "{amount}" under rayStartParams'
    is_chips = key in NEURON_CHIPS
    what = amount
    if is_chips:
        what = f"the number of cores of its {amount} Neuron chips (two cores per chip on Inf2 and Trn1)"
    if at.needs_start_params:
        return f"write {what} as {resource} in the JSON of rayStartParams.resources"
    if is_chips:
        return f"write {what} as {resource} in the group's resources, next to groupName and template"
    return f'write resources: {{{resource}: "{amount}"}} next to groupName and template'


@RULES.of_each(groups_of, "resource-spelling", "warning", f"_get_custom_resources in {_READER}")
def _wrong_spelling(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray's names are CPU, GPU and memory. Any other spelling is a custom resource, which no trial requests."""
    yield from misspelled_resources(at.name, (*at.path, "resources"), at.spec.resources, {"memory": "memory"})


def misspelled_resources(
    name: str, path: tuple[str | int, ...], names: Iterable[str], others: Mapping[str, str] = {}
) -> Iterator[Found]:
    """Yield a finding for each misspelled name of a Ray resource.

    Args:
        name: The name of the group or node type in messages.
        path: The path of the resources.
        names: The names of the resources.
        others: Further names of Ray resources, by their lower-case form.
    """
    known = _SPELLINGS | dict(others)
    for given in names:
        right = known.get(given.lower(), given)
        if right != given:
            message = f"{name} has the resource {given!r}, which Ray does not treat as {right!r}"
            yield Found((*path, given), message, f"write {right}")


class _StatedGpus(NamedTuple):
    """A group that states a number of GPUs: the path and the value of this number, and the number of requested GPUs."""

    at: Group[HeadGroup]
    path: tuple[str | int, ...]
    stated: int
    requested: int


def _stated_gpus(cluster: ClusterInFile) -> Iterator[_StatedGpus]:
    for at in groups_of(cluster):
        stated = at.amount("GPU", "num-gpus")
        if stated is None:
            continue
        path, amount = stated
        number, there = exact(amount), _gpus(at)
        # Other rules report numbers that are invalid or not whole.
        if number is not None and number.denominator == 1 and there is not None:
            yield _StatedGpus(at, path, int(number), there)


def _gpus(at: Group[HeadGroup]) -> int | None:
    """Return the number of GPUs or parts of GPUs that the Ray container requests, or ``None`` if unknown."""
    given = gpus_given(at.spec.template)
    is_elsewhere = has_other_gpus(at) or has_misplaced_kai_part(at.spec.template, at.cluster.metadata)
    if given == 0 and is_elsewhere:
        return None
    return given


def has_other_gpus(at: Group[HeadGroup]) -> bool:
    """Return whether the group may have GPUs from resource claims or from a scheduler that shares GPUs."""
    asked = at.container.resources
    others = (*asked.limits, *asked.requests, *at.spec.template.metadata.annotations)
    return bool(extra(asked, "claims")) or any("gpu" in name and ray_resource(name) is None for name in others)


@RULES.of_each(_stated_gpus, "gpus-differ-from-limit", "warning", _GPU_PAGE)
def _gpus_differ_from_limit(gpus: _StatedGpus) -> Iterator[Found]:
    """Ray counts the stated number. If the pod has fewer GPUs, trials fail. If it has more, GPUs stay idle.

    A different number is only correct if the device plugin reports a wrong number.
    """
    # ``gpus-without-device`` reports a group that requests none.
    if gpus.requested not in (0, gpus.stated):
        stated = counted(gpus.stated, "GPU")
        message = f"Ray counts {stated} in {gpus.at}, but each pod requests {gpus.requested} from Kubernetes"
        yield Found(gpus.path, message, f'unless the device plugin reports a wrong number, write "{gpus.requested}"')


@RULES.of_each(_stated_gpus, "gpus-without-device", "warning", _GPU_PAGE)
def _gpus_without_device(gpus: _StatedGpus) -> Iterator[Found]:
    """Without a limit for the device, Kubernetes places the pod on any node, and trials find no GPU."""
    if gpus.requested == 0 < gpus.stated:
        stated = counted(gpus.stated, "GPU")
        message = f"Ray counts {stated} in {gpus.at}, but its Ray container requests none from Kubernetes"
        fix = f'write nvidia.com/gpu: "{gpus.stated}", or the key of another vendor, under limits'
        yield Found(gpus.path, message, fix)


@RULES.of_each(
    groups_of,
    "shared-gpu",
    "note",
    "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html",
)
def _shared_device(at: Group[HeadGroup]) -> Iterator[Found]:
    """Time slices share the memory of the GPU. A pod that uses too much memory makes other pods fail."""
    if "mps" in [at.pod.nodeSelector.get(label) for label in STRATEGIES]:
        return  # MPS isolates the memory
    for key in at.devices:
        if key.endswith(".shared"):
            message = f"{at} shares a GPU with other pods by time slices ({key})"
            yield Found(at.key_path(key), message, "limit each trial to its fraction of the GPU memory, or use MIG")


@RULES.of_each(groups_of, "several-mig-devices", "warning", "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/")
def _several_mig_devices(at: Group[HeadGroup]) -> Iterator[Found]:
    """Ray assigns MIG devices to trials by index, but CUDA finds only the first, so most trials see no device."""
    for key, amount in at.devices.items():
        if key.startswith("nvidia.com/mig-") and (exact(amount) or 0) > 1:
            message = f"{at} requests {amount} × {key} for a pod, but a process can use only one of them"
            fix = "request 1 per pod, with the CPUs and the memory for one device, and use more pods"
            yield Found(at.key_path(key), message, fix)


_GKE: Final = "https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus"


class _Slices(NamedTuple):
    """A group of TPU slices, with the number of chips per host."""

    at: Group[WorkerGroupSpec]
    chips: int

    @property
    def selector(self) -> Mapping[str, str]:
        return self.at.pod.nodeSelector

    def selector_path(self, *key: str) -> tuple[str | int, ...]:
        return (*self.at.pod_path, "nodeSelector", *key)


def _slices(cluster: ClusterInFile) -> Iterator[_Slices]:
    for at in workers_of(cluster):
        chips = exact(at.devices.get(TPU_KEY))
        if chips is not None and chips.denominator == 1:
            yield _Slices(at, int(chips))


@RULES.of_each(
    _slices, "tpu-selectors-missing", "error", "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/tpu.html"
)
def _selectors_missing(slices: _Slices) -> Iterator[Found]:
    """GKE schedules TPU pods by type and topology, and Ray uses both to derive the resource that reserves a slice."""
    for key in (GKE_TPU_TYPE, GKE_TPU_TOPOLOGY):
        if key not in slices.selector:
            message = f"{slices.at} has TPUs, but no node selector {key}"
            yield Found(slices.selector_path(), message, f"add {key} to its nodeSelector")


@RULES.of_each(
    _slices, "unknown-tpu", "error", "gke_tpu_accelerator_to_generation in ray.autoscaler._private.kuberay.utils"
)
def _unknown_accelerator(slices: _Slices) -> Iterator[Found]:
    """No node has this TPU type, and Ray creates no resource for the slice."""
    name = slices.selector.get(GKE_TPU_TYPE)
    if name is not None and name not in TPU_TYPES:
        message = f"unknown TPU type {name!r}{suggest(name, TPU_TYPES)}"
        yield Found(slices.selector_path(GKE_TPU_TYPE), message, f"use one of {', '.join(TPU_TYPES)}")


@RULES.of_each(_slices, "unknown-tpu-topology", "error", "VALID_TPU_TOPOLOGY in ray._private.accelerators.tpu")
def _unknown_topology(slices: _Slices) -> Iterator[Found]:
    """Ray cannot reserve a slice with this topology."""
    device, topology = TPU_TYPES.get(slices.selector.get(GKE_TPU_TYPE, "")), slices.selector.get(GKE_TPU_TOPOLOGY)
    if device is not None and topology is not None and topology not in TOPOLOGIES[device]:
        message = f"{device} has no slices of topology {topology!r}{suggest(topology, TOPOLOGIES[device])}"
        # Sorted by the number of chips, because alphabetical order would put 16x16 before 2x2.
        by_size = sorted(TOPOLOGIES[device], key=lambda name: (math.prod(map(int, name.split("x"))), name))
        fix = f"use one of {shorten_names(by_size)}"
        yield Found(slices.selector_path(GKE_TPU_TOPOLOGY), message, fix)


@RULES.of_each(_slices, "tpu-chips-per-host", "error", _GKE)
def _chips_per_host(slices: _Slices) -> Iterator[Found]:
    """A pod must request all chips of its host."""
    # Each host of a slice with several hosts has 4 chips. Other numbers exist only in slices of one host.
    allowed = (1, 2, 4, 8) if slices.at.spec.numOfHosts == 1 else (4,)
    if slices.chips not in allowed:
        message = f"a host of {slices.at} has {slices.chips} TPU chips"
        yield Found(slices.at.key_path(TPU_KEY), message, f"write {' or '.join(map(str, allowed))}")


@RULES.of_each(_slices, "tpu-hosts-per-slice", "error", _GKE)
def _hosts_per_slice(slices: _Slices) -> Iterator[Found]:
    """All hosts of a slice are added together. With a wrong number of hosts, the slice never becomes ready."""
    topology, hosts = slices.selector.get(GKE_TPU_TOPOLOGY, ""), slices.at.spec.numOfHosts
    if not re.fullmatch(r"\d{1,4}(x\d{1,4}){1,2}", topology) or slices.chips == 0:
        return
    of_slice = math.prod(map(int, topology.split("x")))
    if hosts * slices.chips == of_slice:
        return
    message = f"{slices.at} has {hosts} hosts of {slices.chips} chips, but a {topology} slice has {of_slice} chips"
    fix = "set the TPU amount in limits to the number of chips of one host"
    if of_slice and of_slice % slices.chips == 0:
        fix = f"write numOfHosts: {of_slice // slices.chips}"
    yield Found((*slices.at.path, "numOfHosts"), message, fix)


@RULES.of_each(_slices, "tpu-labels-missing", "warning", "reserve_tpu_slice in ray._private.accelerators.tpu")
def _slice_labels_missing(slices: _Slices) -> Iterator[Found]:
    """Ray Train reserves slices by labels of their first hosts, so autoscaler v2 adds none to a group without them."""
    cluster, spec = slices.at.cluster, slices.at.spec
    device, topology = TPU_TYPES.get(slices.selector.get(GKE_TPU_TYPE, "")), slices.selector.get(GKE_TPU_TOPOLOGY)
    if not cluster.spec.enableInTreeAutoscaling or cluster.autoscaler_version != 2:
        return
    if device is None or topology not in TOPOLOGIES[device] or spec.maxReplicas <= spec.minReplicas:
        return  # other rules report unknown types and topologies
    shape = SliceShape(topology, device)
    # Ray Train reserves only slices of several hosts.
    missing = [f'{key}: "{value}"' for key, value in shape.head_labels.items() if spec.labels.get(key) != value]
    if missing and not shape.has_one_host:
        message = f"{slices.at} has TPU slices of several hosts, but no labels by which Ray Train reserves them"
        yield Found((*slices.at.path, "labels"), message, f"write labels: {{{', '.join(missing)}}}")
