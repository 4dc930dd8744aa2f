"""Draws random policies and node catalogs. Equal seeds give equal results."""

import random
from typing import Final

from tests.evidence.plans.random_clusters import draw_policies, draw_sizing_policy
from tune_policies import AcceleratorPolicy, ClusterCapacity, CpuPolicy, MixedPolicy, ResourcePolicy
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType

GIB: Final = 2**30
_GPU_TYPES: Final = (None, "T4", "A10G", "A100", "H100")
_LABELS: Final[tuple[dict[str, str], ...]] = ({}, {}, {"zone": "eu"}, {"zone": "us", "disk": "ssd"})


def draw_catalog(rng: random.Random) -> NodeCatalog:
    """Return a catalog of 1 to 5 node types with GPUs, other devices, or only CPUs."""
    return NodeCatalog(nodes=tuple(_draw_type(rng, f"type-{number}") for number in range(rng.randint(1, 5))))


def _draw_type(rng: random.Random, name: str) -> NodeType:
    gpus = rng.choice((0, 0, 1, 1, 2, 4, 8))
    vendor = {} if gpus else rng.choice(({}, {}, {}, {"NPU": 8}, {"HPU": 8}, {"neuron_cores": 2}))
    cpus = rng.choice((2, 4, 8, 16, 32))
    return NodeType(
        name=name,
        cpus=cpus,
        memory=cpus * rng.choice((2, 4, 8)) * GIB,
        gpus=gpus,
        custom={**vendor, **rng.choice(({}, {}, {"license": 2}, {"scratch": 3}))},
        accelerator_type=rng.choice(_GPU_TYPES) if gpus else None,
        price_per_hour=rng.choice((None, 0.25 * cpus + 1.5 * gpus)),
        count=rng.choice((2, 5, 20, 1000)),
        labels=rng.choice(_LABELS),
    )


def draw_policy(rng: random.Random) -> ResourcePolicy:
    """Return a random policy that needs no files."""
    match rng.choices(("any", "mixed", "vendor"), weights=(75, 15, 10))[0]:
        case "mixed":
            return MixedPolicy(draw_sizing_policy(rng), CpuPolicy(cpus=rng.choice((1, 2, 3))))
        case "vendor":
            resource, amounts = rng.choice((("NPU", (0.25, 0.3, 1, 2)), ("HPU", (1, 2)), ("neuron_cores", (1, 2))))
            return AcceleratorPolicy(resource=resource, amount=rng.choice(amounts), num_workers=rng.choice((0, 0, 2)))
        case _:
            # Pass no nodes, because the nodes of a design have no IDs that a policy could exclude.
            return next(draw_policies(rng, ClusterCapacity()))
