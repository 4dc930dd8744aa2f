"""Rules for devices: which Kubernetes gives to a pod, and how many Ray believes to have."""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.lint.finding import Edit
from tune_policies.kuberay.lint.rule import VALUES, Found, Rule, RuleSet
from tune_policies.kuberay.lint.rules.cluster_parts import (
    READS_GROUP_FIELDS,
    Group,
    devices_of,
    exact,
    extra,
    groups_of,
    is_autoscaling,
    ray_version_of,
)
from tune_policies.kuberay.manifests.kuberay_models import ClusterInFile, HeadGroup
from tune_policies.kuberay.manifests.ray_counts import ray_counts
from tune_policies.values.errors import InvalidResourcesError

_KUBERNETES: Final = "https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources"

_READER: Final = "ray.autoscaler._private.kuberay.autoscaling_config"

_NEURON_CHIPS: Final = ("aws.amazon.com/neuron", "aws.amazon.com/neurondevice")
"""Keys that count chips; Ray counts cores, of which chips have two or more
(https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/kubernetes-getting-started.html)."""

_GPU_PAGE: Final = "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/gpu.html"

SPELLINGS: Final = {"cpu": "CPU", "gpu": "GPU", "tpu": "TPU", "hpu": "HPU", "npu": "NPU"}


def _requested_without_limit(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for number, container in enumerate(at.pod.containers):
            asked = container.resources
            for key in devices_of(container).keys() - asked.limits.keys():
                path = (*at.pod_path, "containers", number, "resources")
                amount = asked.requests[key]
                # A mapping that is missing is written whole.
                edit = Edit((*path, "limits", key), amount) if asked.limits else Edit((*path, "limits"), {key: amount})
                yield Found(
                    (*path, "requests", key),
                    f"{at.name} requests {amount} {key} and has no limit for it",
                    f'write {key}: "{amount}" under limits too',
                    (edit,),
                    is_safe=True,
                )


def _request_differs(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for number, container in enumerate(at.pod.containers):
            limits, requests = container.resources.limits, container.resources.requests
            for key in sorted(filter(ray_resource, limits.keys() & requests.keys())):
                if exact(limits[key]) != exact(requests[key]):
                    yield Found(
                        (*at.pod_path, "containers", number, "resources", "requests", key),
                        f"{at.name} requests {requests[key]} {key} with a limit of {limits[key]}",
                        f"write the same amount twice, or leave the request of {key} out",
                    )


def _fractional_device(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for number, container in enumerate(at.pod.containers):
            for key, amount in devices_of(container).items():
                if (known := exact(amount)) is not None and known.denominator != 1:
                    section = "limits" if key in container.resources.limits else "requests"
                    yield Found(
                        (*at.pod_path, "containers", number, "resources", section, key),
                        f"{at.name} asks for {amount} {key}",
                        "ask for whole devices here; a trial may have a part of one by Ray's num_gpus",
                    )


def _device_not_counted(cluster: ClusterInFile) -> Iterator[Found]:
    if not is_autoscaling(cluster.spec):
        return  # Ray counts what it finds where a node starts: only a node that is still to come is misread
    for at in groups_of(cluster.spec):
        counted = _counted(at)
        for key, amount in at.devices.items():
            resource = ray_resource(key)
            if counted is not None and resource is not None and resource not in counted:
                fix, edits = _tell(cluster, at, resource, key, str(amount))
                message = f"Ray's autoscaler does not count {key}, so that {at.name} has no {resource} to it"
                yield Found(at.key_path(key), message, fix, edits)


def _tell(
    cluster: ClusterInFile, at: Group[HeadGroup], resource: str, key: str, amount: str
) -> tuple[str, tuple[Edit, ...]]:
    """Return how to tell Ray of a resource, in words and as a change, in the one place where the group tells others."""
    resources, params = at.spec.resources, at.spec.rayStartParams
    if resource == "GPU" and not resources:
        return f'write num-gpus: "{amount}" under rayStartParams', (_entry(at, "rayStartParams", "num-gpus", amount),)
    is_chips = key in _NEURON_CHIPS
    what = f"the cores of its {amount} Neuron chips (two each on Inf2 and Trn1)" if is_chips else f"the {amount}"
    version = ray_version_of(cluster)
    if cluster.document_type == VALUES or (version is not None and version < READS_GROUP_FIELDS):
        return f"write {what} as {resource} in JSON under rayStartParams, resources", ()
    if is_chips:
        return f"write {what} as {resource} in the group's resources, beside groupName and template", ()
    is_free = not params.keys() & {"num-cpus", "num-gpus", "memory", "resources"}
    fix = f'write resources: {{{resource}: "{amount}"}} beside groupName and template'
    return fix, (_entry(at, "resources", resource, amount),) if is_free else ()


def _entry(at: Group[HeadGroup], field: Literal["resources", "rayStartParams"], key: str, value: str) -> Edit:
    """Return the change that writes an entry, and the mapping too where it is missing."""
    if at.spec.resources if field == "resources" else at.spec.rayStartParams:
        return Edit((*at.path, field, key), value)
    return Edit((*at.path, field), {key: value})


def _counted(at: Group[HeadGroup]) -> Mapping[str, int] | None:
    """Return what Ray's autoscaler counts; ``None``: it cannot tell, which other rules say."""
    try:
        return ray_counts(at.spec)
    except InvalidResourcesError:
        return None


def _wrong_spelling(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for name, amount in at.spec.resources.items():
            right = SPELLINGS.get(name.lower()) or ("memory" if name.lower() == "memory" else name)
            if right == name:
                continue
            path = (*at.path, "resources")
            edits = (Edit((*path, name), None), Edit((*path, right), amount))
            yield Found(
                (*path, name),
                f"{at.name} has the resource {name!r}, which for Ray is another one than {right!r}",
                f"write {right}",
                () if right in at.spec.resources else edits,
            )


def _gpus(at: Group[HeadGroup]) -> int | None:
    """Return how many GPUs Kubernetes gives to the Ray container; ``None``: that is not told, or told elsewhere."""
    asked = at.container.resources
    # Resource claims, and the keys and annotations of schedulers that share GPUs out by themselves.
    others = (*asked.limits, *asked.requests, *at.spec.template.metadata.annotations)
    if extra(asked, "claims") or any("gpu" in name and ray_resource(name) is None for name in others):
        return None
    amounts = [exact(amount) for key, amount in at.devices.items() if ray_resource(key) == "GPU"]
    known = [each for each in amounts if each is not None]
    return int(sum(known)) if len(known) == len(amounts) else None


def _told_gpus(cluster: ClusterInFile) -> Iterator[tuple[Group[HeadGroup], Found, int, int]]:
    """Return the groups whose GPUs Ray is told, with a finding to fill in, the number told, and the number there."""
    for at in groups_of(cluster.spec):
        if (told := at.amount("GPU", "num-gpus")) is None:
            continue
        number, there = exact(told[1]), _gpus(at)
        if number is not None and number.denominator == 1 and there is not None:
            message = f"Ray is told of {number} GPUs in {at.name}, of which Kubernetes gives {there} to each pod"
            yield at, Found(told[0], message, f'write "{there}", or ask Kubernetes for {number}'), int(number), there


def _more_gpus_than_there_are(cluster: ClusterInFile) -> Iterator[Found]:
    return (found for _, found, told, there in _told_gpus(cluster) if 0 < there < told)


def _gpus_without_device(cluster: ClusterInFile) -> Iterator[Found]:
    for at, found, told, there in _told_gpus(cluster):
        if there == 0 < told:
            yield found._replace(
                message=f"Ray is told of {told} GPUs in {at.name}, whose Ray container asks Kubernetes for none",
                fix=f'write nvidia.com/gpu: "{told}", or the key of another maker, under the limits',
            )


def _fewer_gpus_than_there_are(cluster: ClusterInFile) -> Iterator[Found]:
    return (found for _, found, told, there in _told_gpus(cluster) if told < there)


def _device_beside_ray(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for number, container in enumerate(at.pod.containers[1:], start=1):
            for key in sorted(devices_of(container)) if not at.devices else ():
                yield Found(
                    (*at.pod_path, "containers", number),
                    f"{key} goes to the container {container.name!r} of {at.name}, not to Ray's",
                    f"ask for {key} in the first container, {at.container.name!r}",
                )


def _several_kinds(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        if len(keys := sorted(at.devices)) > 1:
            yield Found(
                at.key_path(keys[1]),
                f"{at.name} has devices of several kinds: {', '.join(keys)}",
                "make a group of each",
            )


def _shared_device(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for key in at.devices:
            if key.endswith(".shared"):
                yield Found(
                    at.key_path(key),
                    f"{at.name} has a share of time on a GPU ({key}), with other pods",
                    "let each trial keep to its part of the GPU's memory, or use MIG",
                )


def _several_parts(cluster: ClusterInFile) -> Iterator[Found]:
    for at in groups_of(cluster.spec):
        for key, amount in at.devices.items():
            if key.startswith("nvidia.com/mig-") and (exact(amount) or 0) > 1:
                yield Found(
                    at.key_path(key),
                    f"{at.name} has {amount} of {key} in a pod, of which CUDA shows a process one",
                    "ask for 1 of them, with the CPUs and the memory for one, and for more pods",
                )


RULES: RuleSet = (
    Rule(
        "device-without-limit",
        "error",
        "Kubernetes refuses a pod that requests devices without a limit.",
        _KUBERNETES,
        _requested_without_limit,
    ),
    Rule(
        "device-request-differs",
        "error",
        "Devices cannot be overcommitted: Kubernetes refuses a pod whose request is not the limit.",
        _KUBERNETES,
        _request_differs,
    ),
    Rule(
        "device-fraction",
        "error",
        "Kubernetes gives whole devices, and refuses the pod.",
        _KUBERNETES,
        _fractional_device,
    ),
    Rule(
        "device-not-counted",
        "error",
        "The autoscaler counts keys that end in gpu, and google.com/tpu. It adds no node of this group for a trial "
        "that needs the device, which waits for ever.",
        f"_get_num_gpus in {_READER}",
        _device_not_counted,
    ),
    Rule(
        "resource-spelling",
        "warning",
        "Ray's names are CPU, GPU and memory. Any other spelling is a resource of its own, for which no trial asks.",
        f"_get_custom_resources in {_READER}",
        _wrong_spelling,
    ),
    Rule(
        "more-gpus-than-there-are",
        "error",
        "Ray hands out devices that are not there, and the trials that get them fail.",
        _GPU_PAGE,
        _more_gpus_than_there_are,
    ),
    Rule(
        "gpus-without-device",
        "warning",
        "Without a limit for the device, Kubernetes puts the pod on any node, and trials find no GPU.",
        _GPU_PAGE,
        _gpus_without_device,
    ),
    Rule(
        "fewer-gpus-than-there-are",
        "warning",
        "The others are paid for, and no trial ever gets them.",
        _GPU_PAGE,
        _fewer_gpus_than_there_are,
    ),
    Rule(
        "device-beside-ray",
        "warning",
        "Ray runs in the first container; it neither sees nor counts the devices of others.",
        f"_get_ray_resources_from_group_spec in {_READER}",
        _device_beside_ray,
    ),
    Rule(
        "several-kinds-of-devices",
        "warning",
        "Ray's autoscaler counts the first kind of GPU that it meets, and Ray detects one kind on a node.",
        f"_get_num_gpus in {_READER}",
        _several_kinds,
    ),
    Rule(
        "shared-gpu",
        "note",
        "Pods that share a GPU by time slices are not kept apart in its memory: one that takes too much fails others.",
        "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html",
        _shared_device,
    ),
    Rule(
        "several-gpu-parts",
        "warning",
        "Ray gives each trial the number of one, but CUDA finds one MIG device alone: most trials see none.",
        "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/",
        _several_parts,
    ),
)
