"""Clusters as people have them, of published node shapes: what three clouds rent, and what a large GPU cluster had.

Only figures that the named page states are here; a shape of which one could not be found there is left out. GPU memory
is what the vendor sells: a driver reports up to 6 % less.
"""

import random
from typing import Final, NamedTuple

from tune_policies import ClusterCapacity, GpuDevice, NodeCapacity, Resources
from tune_policies.values.units import GIB

_MOST_OF_A_SHAPE: Final = 6
_MOST_SHAPES: Final = 4


class Shape(NamedTuple):
    """One type of node.

    Attributes:
        name: As its vendor calls it.
        cpus: Virtual CPUs.
        memory_gib: Host memory; ``None``: not found on the page.
        gpus: How many it has.
        accelerator_type: Ray's name of their type; ``None``: it has none.
        gpu_gib: Memory of one.
        price_per_hour: In US dollars; ``None``: not known.
    """

    name: str
    cpus: int
    memory_gib: float | None
    gpus: int = 0
    accelerator_type: str | None = None
    gpu_gib: float = 0
    price_per_hour: float | None = None


# fmt: off
AWS: Final = (
    # https://docs.aws.amazon.com/batch/latest/userguide/gpu-jobs.html
    Shape("g4dn.xlarge", 4, 16, 1, "T4", 16),
    Shape("g4dn.2xlarge", 8, 32, 1, "T4", 16),
    Shape("g4dn.4xlarge", 16, 64, 1, "T4", 16),
    Shape("g4dn.8xlarge", 32, 128, 1, "T4", 16),
    Shape("g4dn.12xlarge", 48, 192, 4, "T4", 16),
    Shape("g4dn.16xlarge", 64, 256, 1, "T4", 16),
    Shape("g5.xlarge", 4, 16, 1, "A10G", 24),
    Shape("g5.2xlarge", 8, 32, 1, "A10G", 24),
    Shape("g5.4xlarge", 16, 64, 1, "A10G", 24),
    Shape("g5.8xlarge", 32, 128, 1, "A10G", 24),
    Shape("g5.12xlarge", 48, 192, 4, "A10G", 24),
    Shape("g5.16xlarge", 64, 256, 1, "A10G", 24),
    Shape("g5.24xlarge", 96, 384, 4, "A10G", 24),
    Shape("g5.48xlarge", 192, 768, 8, "A10G", 24),
    Shape("g6.xlarge", 4, 16, 1, "L4", 24),
    Shape("g6.2xlarge", 8, 32, 1, "L4", 24),
    Shape("g6.4xlarge", 16, 64, 1, "L4", 24),
    Shape("g6.8xlarge", 32, 128, 1, "L4", 24),
    Shape("g6.16xlarge", 64, 256, 1, "L4", 24),
    # https://aws.amazon.com/ec2/capacityblocks/pricing/
    Shape("p4d.24xlarge", 96, 1152, 8, "A100-40G", 40),
    Shape("p5.48xlarge", 192, 2048, 8, "H100", 80),
)
GOOGLE: Final = (
    # https://cloud.google.com/compute/docs/accelerator-optimized-machines; a name of G2 says its CPUs.
    Shape("g2-standard-4", 4, None, 1, "L4", 24),
    Shape("g2-standard-8", 8, None, 1, "L4", 24),
    Shape("g2-standard-12", 12, None, 1, "L4", 24),
    Shape("g2-standard-16", 16, None, 1, "L4", 24),
    Shape("g2-standard-24", 24, None, 2, "L4", 24),
    Shape("g2-standard-32", 32, None, 1, "L4", 24),
    Shape("g2-standard-48", 48, None, 4, "L4", 24),
    Shape("g2-standard-96", 96, None, 8, "L4", 24),
    Shape("a2-highgpu-1g", 12, 85, 1, "A100-40G", 40),
    Shape("a2-highgpu-2g", 24, 170, 2, "A100-40G", 40),
    Shape("a2-ultragpu-1g", 12, 170, 1, "A100-80G", 80),
    Shape("a3-highgpu-8g", 208, 1872, 8, "H100", 80),
)
AZURE: Final = (
    # Pay-as-you-go in East US, of which this is a machine-readable copy:
    # https://github.com/skypilot-org/skypilot-catalog/blob/098741e/catalogs/v6/azure/vms.csv; memory of the GPUs:
    # https://learn.microsoft.com/azure/virtual-machines/sizes/overview#gpu-accelerated
    Shape("Standard_NC4as_T4_v3", 4, 28, 1, "T4", 16, 0.526),
    Shape("Standard_NC8as_T4_v3", 8, 56, 1, "T4", 16, 0.752),
    Shape("Standard_NC16as_T4_v3", 16, 110, 1, "T4", 16, 1.204),
    Shape("Standard_NC64as_T4_v3", 64, 440, 4, "T4", 16, 4.352),
    Shape("Standard_NC6s_v3", 6, 112, 1, "V100", 16, 3.06),
    Shape("Standard_NC12s_v3", 12, 224, 2, "V100", 16, 6.12),
    Shape("Standard_NC24s_v3", 24, 448, 4, "V100", 16, 12.24),
    Shape("Standard_NC24ads_A100_v4", 24, 220, 1, "A100-80G", 80, 3.673),
    Shape("Standard_NC48ads_A100_v4", 48, 440, 2, "A100-80G", 80, 7.346),
    Shape("Standard_NC96ads_A100_v4", 96, 880, 4, "A100-80G", 80, 14.692),
    Shape("Standard_ND40rs_v2", 40, 672, 8, "V100", 32, 22.032),
    Shape("Standard_ND96asr_v4", 96, 900, 8, "A100-40G", 40, 27.197),
    Shape("Standard_ND96amsr_A100_v4", 96, 1800, 8, "A100-80G", 80, 32.77),
    Shape("Standard_E8s_v3", 8, 64, price_per_hour=0.504),
    Shape("Standard_B16ms", 16, 64, price_per_hour=0.666),
    Shape("Standard_E80is_v4", 80, 504, price_per_hour=5.04),
)
ALIBABA: Final = (
    # A production cluster of 1,523 nodes (Weng and others, USENIX ATC 2023):
    # https://github.com/alibaba/clusterdata/blob/master/cluster-trace-gpu-v2023/csv/openb_node_list_all_node.csv
    # Its models G2 and G3 are not disclosed, so they are left out.
    Shape("8 CPUs, 1 P100", 8, 60, 1, "P100", 16),
    Shape("16 CPUs, 2 P100", 16, 120, 2, "P100", 16),
    Shape("64 CPUs, 2 P100", 64, 256, 2, "P100", 16),
    Shape("104 CPUs, 2 T4", 104, 512, 2, "T4", 16),
    Shape("96 CPUs, 4 T4", 96, 384, 4, "T4", 16),
    Shape("8 CPUs, 1 V100M16", 8, 32, 1, "V100", 16),
    Shape("32 CPUs, 4 V100M16", 32, 128, 4, "V100", 16),
    Shape("64 CPUs, 8 V100M16", 64, 256, 8, "V100", 16),
    Shape("48 CPUs, 4 V100M32", 48, 368, 4, "V100", 32),
    Shape("96 CPUs, 8 V100M32", 96, 768, 8, "V100", 32),
    Shape("32 CPUs", 32, 256),
)
# fmt: on

SOURCES: Final = {"AWS": AWS, "Google": GOOGLE, "Azure": AZURE, "Alibaba": ALIBABA}


class PricedCluster(NamedTuple):
    """A cluster, where its nodes are from, and what all of them cost in an hour; ``None``: not known."""

    capacity: ClusterCapacity
    source: str
    price_per_hour: float | None


def draw_priced_cluster(rng: random.Random) -> PricedCluster:
    """Return 1 to 6 nodes of each of 2 to 4 shapes of one source, of which at least one has GPUs.

    The first node is the head. In a third of the clusters it is kept free of work, so Ray counts none of its CPUs.
    """
    source = rng.choice(list(SOURCES))
    shapes = rng.sample(SOURCES[source], rng.randint(2, _MOST_SHAPES))
    if not any(shape.gpus for shape in shapes):
        shapes[0] = rng.choice([shape for shape in SOURCES[source] if shape.gpus])
    drawn = [shape for shape in shapes for _ in range(rng.randint(1, _MOST_OF_A_SHAPE))]
    rng.shuffle(drawn)
    keeps_head_free = rng.random() < 1 / 3
    nodes = tuple(
        _node(shape, f"{index:056x}", is_head=index == 0, has_no_cpus=index == 0 and keeps_head_free)
        for index, shape in enumerate(drawn)
    )
    prices = [shape.price_per_hour for shape in drawn]
    known = [price for price in prices if price is not None]
    return PricedCluster(ClusterCapacity(nodes=nodes), source, sum(known) if len(known) == len(prices) else None)


def _node(shape: Shape, node_id: str, *, is_head: bool, has_no_cpus: bool) -> NodeCapacity:
    memory = int(shape.gpu_gib * GIB)
    return NodeCapacity(
        node_id=node_id,
        resources=Resources(
            cpus=0 if has_no_cpus else shape.cpus,
            gpus=shape.gpus,
            memory_bytes=None if shape.memory_gib is None else int(shape.memory_gib * GIB),
        ),
        accelerator_type=shape.accelerator_type,
        labels={"ray.io/node-id": node_id},
        devices=tuple(
            GpuDevice(index=index, name=shape.accelerator_type or "", memory_bytes=memory)
            for index in range(shape.gpus)
        ),
        is_head=is_head,
    )
