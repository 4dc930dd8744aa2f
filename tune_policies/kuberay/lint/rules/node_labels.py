"""Rules for node selectors and node affinities: values of well-known node labels that no node has."""

import difflib
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tune_policies.files.yaml_documents import Path
from tune_policies.kuberay.design.device_plugins import GKE_TPU_TYPE, label_values
from tune_policies.kuberay.lint.pod_schema import PodTemplate, as_list, as_mapping
from tune_policies.kuberay.lint.rule import Found, Rule
from tune_policies.kuberay.lint.rules.pod_parts import node_requirements
from tune_policies.kuberay.lint.template_rule import is_filled_in_later, template_rule
from tune_policies.kuberay.reading.shared_gpu_memory import GPU_PRODUCT
from tune_policies.values.wording import shorten_names

RULES: Final[list[Rule]] = []

_OTHER_GKE: Final = (
    *("nvidia-b300", "nvidia-gb300", "nvidia-h100-mega-80gb", "nvidia-h200-nvl", "nvidia-tesla-m60"),
    *(
        "nvidia-rtx-pro-6000-vws",
        "nvidia-l4-vws",
        "nvidia-tesla-t4-vws",
        "nvidia-tesla-p4-vws",
        "nvidia-tesla-p100-vws",
    ),
)
"""Further types of Google Cloud (https://cloud.google.com/compute/docs/gpus), for which Ray has no own name."""

_OTHER_KARPENTER: Final = ("a10", "b300", "gb200", "gb300", "l40", "m60", "p4", "p100", "radeon-pro-v520", "t4g", "h20")

_CLOSED: Final[dict[str, tuple[str, ...]]] = {
    "cloud.google.com/gke-accelerator": (*sorted(label_values("gke")), *_OTHER_GKE),
    "karpenter.k8s.aws/instance-gpu-name": (*sorted(label_values("karpenter")), *_OTHER_KARPENTER),
    "karpenter.k8s.aws/instance-gpu-manufacturer": ("nvidia", "amd", "habana", "aws", "qualcomm", "xilinx"),
    "karpenter.sh/capacity-type": ("spot", "on-demand", "reserved"),
    "eks.amazonaws.com/capacityType": ("SPOT", "ON_DEMAND", "CAPACITY_BLOCK"),
    "kubernetes.azure.com/accelerator": ("nvidia", "amd"),
    "kubernetes.azure.com/scalesetpriority": ("spot", "regular"),
    "cloud.google.com/gke-spot": ("true",),
    "cloud.google.com/gke-preemptible": ("true",),
    "cloud.google.com/gke-provisioning": ("spot", "standard", "preemptible"),
    "kubernetes.io/os": ("linux", "windows"),
    "beta.kubernetes.io/os": ("linux", "windows"),
    "kubernetes.io/arch": ("amd64", "arm64", "ppc64le", "s390x", "arm", "riscv64"),
    "beta.kubernetes.io/arch": ("amd64", "arm64", "ppc64le", "s390x", "arm", "riscv64"),
    "nvidia.com/gpu.present": ("true",),
}
"""The values of labels that platforms set themselves.

Sources: https://cloud.google.com/kubernetes-engine/docs/concepts/gpus, https://karpenter.sh/docs/reference/instance-types,
https://kubernetes.io/docs/reference/labels-annotations-taints/, https://learn.microsoft.com/en-us/azure/aks/use-labels,
https://docs.aws.amazon.com/eks/latest/userguide/managed-node-groups.html
"""

_MEANT: Final = {
    "x86_64": "amd64",
    "x86-64": "amd64",
    "x64": "amd64",
    "aarch64": "arm64",
    "ondemand": "on-demand",
    "on_demand": "on-demand",
    "1": "true",
    "yes": "true",
}
"""Values that other systems use, with the value that Kubernetes uses."""

_EKS: Final = "k8s.amazonaws.com/accelerator"


class _Selected(NamedTuple):
    """A label and a value that a pod requires of its node."""

    path: Path
    key: str
    value: str


def _selected(template: PodTemplate) -> Iterator[_Selected]:
    for key, value in as_mapping(template.spec.get("nodeSelector")).items():
        if isinstance(value, str) and not is_filled_in_later(value):
            yield _Selected((*template.path, "spec", "nodeSelector", key), key, value)
    # Only the operator ``In`` requires a value. ``NotIn`` may list values that no node has.
    for path, requirement in node_requirements(template):
        name = requirement.get("key")
        if isinstance(name, str) and requirement.get("operator") == "In":
            for number, value in enumerate(as_list(requirement.get("values"))):
                if isinstance(value, str) and not is_filled_in_later(value):
                    yield _Selected((*template.path, *path, "values", number), name, value)


def _model(value: str) -> str:
    """Return the model in a device name: ``"l4"`` for ``"nvidia-tesla-L4"``, ``"h100"`` for ``"nvidia-h100-80gb"``."""
    words = re.split(r"[-_ ]+", value.lower())
    return "-".join(
        word for word in words if word not in ("nvidia", "tesla", "gpu") and not re.fullmatch(r"\d+gi?b?", word)
    )


def _size(value: str) -> str:
    found = re.search(r"(\d+)gi?b?\b", value.lower())
    if found:
        return found[1]
    return ""


def _meant(value: str, known: tuple[str, ...]) -> str | None:
    """Return the known value that another spelling means, or ``None``."""
    # First, names of other systems, then another case or separator, then another name of the same model, then typos.
    other = _MEANT.get(value.lower())
    if other is not None:
        found = [name for name in known if name.lower().replace("_", "-") == other]
        if found:
            return found[0]
        return None
    by_lower = {name.lower().replace("_", "-"): name for name in known}
    same = by_lower.get(value.lower().replace("_", "-").strip())
    if same is not None:
        return same
    models = [name for name in known if _model(name) and _model(name) == _model(value)]
    if models:
        # Prefer the model with the same memory, then the name without memory.
        return max(models, key=lambda name: (_size(name) == _size(value), not _size(name)))
    near = difflib.get_close_matches(value.lower(), by_lower, n=1, cutoff=0.88)
    # Names that differ only in a number are other models.
    if near and re.sub(r"\D", "", near[0]) == re.sub(r"\D", "", value):
        return by_lower[near[0]]
    return None


_PRODUCT_WORDS: Final = re.compile(
    r"(nvidia[-_ ])?(tesla[-_ ])?([a-z]{1,2}\d{1,4}[a-z]{0,2})([-_ ](\d+gb))?", re.IGNORECASE
)
"""Matches how other platforms write the model of a GPU."""


def _model_of_product(value: str) -> str | None:
    """Return the model in another platform's name, or ``None`` if NVIDIA's GPU feature discovery may write the name."""
    if re.match(r"(NVIDIA-|Tesla-|Quadro-|GeForce-|TITAN-|GRID-)", value):
        return None
    found = _PRODUCT_WORDS.fullmatch(value)
    if found is None:
        return None
    return found[3].upper()


def _product(value: str) -> str | None:
    """Return how GPU feature discovery writes a model that another platform's name means, or ``None`` if unknown.

    The names of most models also contain their form and memory, such as ``NVIDIA-A100-SXM4-40GB``.
    """
    model = _model_of_product(value)
    if model is None:
        return None
    for name in (f"NVIDIA-{model}", f"Tesla-{model}"):
        if name in label_values("gpu-operator"):
            return name
    return None


def _right_value(label: _Selected) -> str | None:
    """Return the value that nodes have instead of this value, or ``None`` if it may be right."""
    if label.key == GPU_PRODUCT:
        return _product(label.value)
    if label.key == _EKS:  # users set this label, so other values are possible
        known = tuple(sorted(label_values("eks")))
        # A name in upper case, such as ``V100``, is how other platforms write a model. All other values may be the
        # user's own.
        if label.value in known or label.value != label.value.upper():
            return None
        return _meant(label.value, known)
    known = _CLOSED.get(label.key, ())
    if label.value in known:
        return None
    return _meant(label.value, known)


def _nearest(value: str, known: tuple[str, ...]) -> list[str]:
    """Return the known values, most similar first."""
    return sorted(known, key=lambda name: -difflib.SequenceMatcher(None, value, name).ratio())


_LABELS: Final = "https://kubernetes.io/docs/reference/labels-annotations-taints/"


@template_rule(RULES, "node-label-misspelled", "error", _LABELS)
def _misspelled(template: PodTemplate) -> Iterator[Found]:
    """No node has this label, so the pods stay pending and node pools add no node for them."""
    for label in _selected(template):
        message = f"{template.name} selects nodes with {label.key}: {label.value}, which no node has"
        right = _right_value(label)
        # The value is another platform's name for a GPU whose product name is unknown here.
        if right is None and label.key == GPU_PRODUCT and _model_of_product(label.value) is not None:
            yield Found(label.path, message, f"copy the value from `kubectl get nodes -L {GPU_PRODUCT}`")
            continue
        if right is None:
            message = f"{template.name} selects nodes by the label {label.key!r}, which no node has"
            # There is no correction for the values of unknown keys. Then the key itself may be misspelled.
            right = _right_key(label.key)
        if right is not None:
            yield Found(label.path, f"{message}; did you mean {right!r}?", f"write {right}")


_KEYS: Final = (
    *_CLOSED,
    *(_EKS, GPU_PRODUCT, GKE_TPU_TYPE, "cloud.google.com/gke-tpu-topology", "cloud.google.com/gke-nodepool"),
    *("kubernetes.io/hostname", "node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"),
    *("topology.kubernetes.io/zone", "topology.kubernetes.io/region", "eks.amazonaws.com/nodegroup"),
    *("karpenter.sh/nodepool", "kubernetes.azure.com/agentpool", "cloud.google.com/compute-class"),
    *("karpenter.k8s.aws/instance-cpu-manufacturer", "nvidia.com/vgpu.present"),
    *("nvidia.com/gpu.memory", "nvidia.com/gpu.count", "nvidia.com/gpu.family", "nvidia.com/mig.strategy"),
    *("cloud.google.com/gke-accelerator-count", "cloud.google.com/gke-gpu", "cloud.google.com/gke-gpu-driver-version"),
    *("cloud.google.com/gke-gpu-partition-size", "cloud.google.com/gke-gpu-sharing-strategy"),
    "cloud.google.com/gke-max-shared-clients-per-gpu",
)
"""Well-known keys of node labels."""


def _right_key(key: str) -> str | None:
    """Return the well-known label that a misspelled key of the same domain means, or ``None``."""
    if key in _KEYS:
        return None
    domain = key.partition("/")[0]
    near = difflib.get_close_matches(
        key, [known for known in _KEYS if known.startswith(f"{domain}/")], n=1, cutoff=0.94
    )
    # A key that is longer by several characters is probably another label, such as one with a suffix.
    if near and len(near[0]) >= len(key) - 1:
        return near[0]
    return None


@template_rule(RULES, "node-label-unknown", "note", _LABELS)
def _unknown(template: PodTemplate) -> Iterator[Found]:
    """The platform may have new types of nodes. If it does not have this one, the pods stay pending."""
    for label in _selected(template):
        known = _CLOSED.get(label.key)
        if known and label.value not in known and _right_value(label) is None:
            message = f"{template.name} selects nodes with {label.key}: {label.value}, which is not a known value"
            yield Found(label.path, message, f"known values are {shorten_names(_nearest(label.value, known))}")
