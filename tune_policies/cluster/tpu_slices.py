"""TPU slices: groups of hosts whose chips are connected and can only be used together.

Ray Train runs the workers of a trial on whole slices. To reserve a slice of several hosts, it requests the resource
``TPU-{pod type}-head`` of the first host, and finds the other hosts by the label with the slice's name. Sources:
``ray.util.tpu``, ``ray._private.accelerators.tpu`` (Ray 2.60).
"""

import math
from collections.abc import Iterable
from itertools import product
from typing import Final, NamedTuple

from tune_policies.cluster.node import NodeCapacity
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import suggest

SLICE_NAME: Final = "ray.io/tpu-slice-name"
TOPOLOGY: Final = "ray.io/tpu-topology"
WORKER_ID: Final = "ray.io/tpu-worker-id"
POD_TYPE: Final = "ray.io/tpu-pod-type"

_CHIPS_PER_HOST: Final = 4
"""The number of chips per host in a slice with several hosts. A newer host with 8 chips is a slice by itself."""

_LARGEST_ON_ONE_HOST: Final = ("1x1", "2x2", "2x4")
"""The topologies that fit on one host, for device types whose hosts can have up to 8 chips."""

_UP_TO_8_CHIPS: Final = frozenset({"TPU-V5LITEPOD", "TPU-V6E"})
_ONE_CORE_PER_CHIP: Final = frozenset({"TPU-V5LITEPOD", "TPU-V6E"})
"""The types with one core per chip. Other types have two cores per chip. The number in a pod type counts cores."""


def _cuboids(x: int, y: int, z: int) -> set[str]:
    """Return the topologies whose edges are multiples of 4, up to the lengths ``x``, ``y`` and ``z``."""
    edges = (range(4, longest + 1, 4) for longest in (x, y, z))
    return {"x".join(map(str, edge)) for edge in product(*edges)}


_SQUARES: Final = {"4x4", "4x8", "8x8", "8x16", "16x16"}
_SMALL_CUBOIDS: Final = {"2x2x1", "2x2x2", "2x2x4", "2x4x4"}
TOPOLOGIES: Final = {
    "TPU-V2": _SQUARES,
    "TPU-V3": _SQUARES | {"16x32", "32x32"},
    "TPU-V4": _SMALL_CUBOIDS | _cuboids(12, 12, 16),
    "TPU-V5P": _SMALL_CUBOIDS | _cuboids(16, 16, 24),
    "TPU-V5LITEPOD": _SQUARES | {"1x1", "2x2", "2x4", "2x8"},
    "TPU-V6E": _SQUARES | {"1x1", "2x2", "2x4", "2x8"},
    "TPU-V7X": _SMALL_CUBOIDS | {"4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16"},
}
"""The topologies that Ray supports, by device type (``VALID_TPU_TOPOLOGY`` in Ray)."""


class SliceShape(NamedTuple):
    """The topology and device type of slices."""

    topology: str
    accelerator_type: str

    @property
    def chips(self) -> int:
        """The number of chips of one slice, for example 8 for ``"2x2x2"``."""
        return math.prod(int(edge) for edge in self.topology.split("x"))

    @property
    def pod_type(self) -> str:
        """Google's name for slices of this shape, such as ``"v4-16"`` (the generation and the number of cores)."""
        per_chip = 1 if self.accelerator_type in _ONE_CORE_PER_CHIP else 2
        cores = self.chips * per_chip
        return f"{self.accelerator_type.removeprefix('TPU-').lower()}-{cores}"

    @property
    def head_resource(self) -> str:
        """The resource of the first host that Train requests to reserve a slice of several hosts."""
        return f"TPU-{self.pod_type}-head"

    @property
    def head_labels(self) -> dict[str, str]:
        """The labels of the first host. Train selects them to reserve a slice of several hosts."""
        return {WORKER_ID: "0", POD_TYPE: self.pod_type}

    @property
    def selector_text(self) -> str:
        """The property that Train uses to find slices of this shape, as text."""
        if self.has_one_host:
            return f"device type {self.accelerator_type}"
        return f"pod type {self.pod_type}"

    @property
    def has_one_host(self) -> bool:
        """Whether a slice of this shape has a single host. Train ignores the slice names of such slices."""
        is_small = self.accelerator_type in _UP_TO_8_CHIPS and self.topology in _LARGEST_ON_ONE_HOST
        return is_small or self.chips <= _CHIPS_PER_HOST


class TpuSlice(NamedTuple):
    """A slice whose hosts are all alive."""

    name: str
    hosts: tuple[NodeCapacity, ...]


class Slices(NamedTuple):
    """The slices of a shape in a cluster.

    Attributes:
        intact: Slices that Train can reserve.
        broken: The names of the other slices, with the reasons why Train cannot reserve them.
    """

    intact: tuple[TpuSlice, ...]
    broken: dict[str, str]


def check_topology(topology: str, accelerator_type: str) -> str:
    """Return ``topology`` if Ray supports it for a device type, or raise an ``InvalidResourcesError``."""
    known = TOPOLOGIES[accelerator_type]
    if topology not in known:
        by_size = sorted(known, key=lambda name: (SliceShape(name, accelerator_type).chips, name))
        hint = suggest(topology, known) or f". Use one of {', '.join(by_size)}"
        raise InvalidResourcesError(f"Ray supports no {accelerator_type} slices of topology {topology!r}{hint}")
    return topology


def find_slices(nodes: Iterable[NodeCapacity], shape: SliceShape) -> Slices:
    """Return the slices of a shape according to Ray's node labels."""
    hosts: dict[str, list[NodeCapacity]] = {}
    for node in nodes:
        # Train selects slices by pod type, so a node without the label of its topology counts, too.
        if _has_pod_type(node, shape) and node.labels.get(TOPOLOGY, shape.topology) == shape.topology:
            # Slices with one host can have equal names or no name.
            name = node.node_id if shape.has_one_host else node.labels.get(SLICE_NAME)
            if name:
                hosts.setdefault(name, []).append(node)
    intact, broken = [], {}
    for name in sorted(hosts):
        why = _defect_of_slice(hosts[name], shape)
        if why:
            broken[name] = why
        else:
            intact.append(TpuSlice(name, tuple(sorted(hosts[name], key=lambda node: node.sort_key))))
    return Slices(tuple(intact), broken)


def ambiguous_topologies(nodes: Iterable[NodeCapacity], shape: SliceShape) -> list[str]:
    """Return the other topologies in the cluster whose hosts Train may reserve by mistake for ``shape``."""
    if shape.has_one_host:
        alike = [node for node in nodes if node.accelerator_type == shape.accelerator_type]
    else:
        alike = [node for node in nodes if _has_pod_type(node, shape)]
    return sorted({node.labels[TOPOLOGY] for node in alike if TOPOLOGY in node.labels} - {shape.topology})


def _has_pod_type(node: NodeCapacity, shape: SliceShape) -> bool:
    return node.labels.get(POD_TYPE) == shape.pod_type


def _defect_of_slice(hosts: list[NodeCapacity], shape: SliceShape) -> str | None:
    chips = sum(host.resources.custom.get("TPU", 0) for host in hosts)
    if chips != shape.chips:
        return f"its alive hosts have {chips:g} of its {shape.chips} chips"
    if shape.has_one_host:
        return None
    # If the label is written in the cluster's file, all hosts have it. Only the first host has the resource.
    heads = [host for host in hosts if host.labels.get(WORKER_ID) == "0"]
    if not heads:
        return f"none of its hosts has the label {WORKER_ID}=0, but its first host must have it"
    if not any(host.resources.custom.get(shape.head_resource, 0) >= 1 for host in heads):
        return f"its first host lacks the resource {shape.head_resource}"
    return None
