"""Node types, and random cluster designs for Hypothesis with all device families, TPU slices and parts of GPUs."""

import re

import yaml
from hypothesis import strategies as st

from tests.clusters import nodes
from tune_policies import GpuPolicy
from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.kuberay.design.catalog_file import HEAD, NodeCatalog, NodeType, Toleration
from tune_policies.kuberay.design.cluster_spec import DesignedGroup
from tune_policies.kuberay.design.design_cluster import ClusterDesign
from tune_policies.kuberay.design.device_plugins import DEVICE_PLUGINS
from tune_policies.kuberay.writing import WriteOptions, write_cluster

GPU_HEAD = NodeType(name="head", cpus=8, memory=64 * 2**30, gpus=2, accelerator_type="L4", labels={"zone": "eu"})
TRIALS = GpuPolicy(gpus=0.25).plan(nodes(*[(8, 1)] * 3))

KEY_OF = {plugin.family: plugin.key for plugin in DEVICE_PLUGINS}
PARTS_OF_GPUS = ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb", "nvidia.com/gpu.shared"]
SLICES = [
    ("TPU-V4", "2x2x2", 4),
    ("TPU-V4", "4x4x4", 4),
    ("TPU-V5P", "2x2x4", 4),
    ("TPU-V5LITEPOD", "4x8", 4),
    ("TPU-V6E", "2x4", 8),
    ("TPU-V6E", "4x4", 4),
]


def a_design(*node_types, **fields):
    """Return a design with up to three nodes of each node type. By default, the only node type has a GPU."""
    of_types = node_types or (gpu_type(),)
    fields.setdefault("groups", tuple(DesignedGroup(node_type=each, max_nodes=3) for each in of_types))
    return ClusterDesign(**{"name": "tune", "head": HEAD, "trials": TRIALS, "num_trials": 12, **fields})


def filled_in(text):
    """Return the text of a cluster file with its optional fields uncommented and its leading comments removed."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    return "\n".join(re.sub(r"^( *)# ", r"\1", line) for line in lines[first:])


def gpu_type(**fields):
    return NodeType(**{"name": "l4", "cpus": 8, "memory": 32 * 2**30, "gpus": 1, "accelerator_type": "L4", **fields})


def cpu_type(**fields):
    return NodeType(**{"name": "cpu", "cpus": 4, "memory": 2**30, **fields})


def spec(plan, **options):
    """Return the ``spec`` of the manifest that is written for a design."""
    return yaml.safe_load(write_cluster(plan, WriteOptions(**options)))["spec"]


words = st.sampled_from(["eu-1", "y", "on", "1e3", "0123", "null", "a.b_c"])
memories = st.sampled_from([2**30, 7 * 2**20, 15_999_999_999, 200 * 10**9]) | st.integers(2**20, 2**40)


@st.composite
def device_fields(draw):
    """Draw the device fields of a node: whole devices or parts of devices of any family, or no devices."""
    kind = draw(st.sampled_from(["none", "slice", "parts", *FAMILIES]))
    if kind == "none":
        return {}
    if kind == "slice":
        accelerator_type, topology, chips = draw(st.sampled_from(SLICES))
        return {"custom": {"TPU": chips}, "accelerator_type": accelerator_type, "topology": topology}
    if kind == "parts":
        # Each pod gets one part of a GPU, as in a catalog.
        fields = {"gpus": 1, "accelerator_type": draw(st.sampled_from(["A100-80G", "H100", None]))}
        return {**fields, "device_key": draw(st.sampled_from(PARTS_OF_GPUS))}
    if kind.resource == "TPU":
        accelerator_type, amount = draw(st.sampled_from([("TPU-V4", 4), ("TPU-V6E", 1), ("TPU-V6E", 8)]))
    else:
        accelerator_type = draw(st.sampled_from([*sorted(kind.types), *([] if kind.resource == "GPU" else [None])]))
        amount = draw(st.sampled_from([1, 2, 8]))
    amounts = {"gpus": amount} if kind.resource == "GPU" else {"custom": {kind.resource: amount}}
    key = {} if KEY_OF[str(kind)] else {"device_key": f"example.com/{kind.resource.lower()}"}
    return {**amounts, **key, "accelerator_type": accelerator_type}


@st.composite
def node_types(draw, name):
    fields = draw(device_fields())
    if draw(st.booleans()):
        fields["custom"] = {**fields.get("custom", {}), "license": draw(st.integers(1, 9))}
    if draw(st.booleans()):
        fields["labels"] = {"example.com/zone": draw(words)}
        fields["node_selector"] = {"pool": draw(words)}
        fields["tolerations"] = (Toleration(key="spot", operator="Equal", value=draw(words), effect=None),)
    if draw(st.booleans()):
        fields["price_per_hour"] = draw(st.floats(0, 100))
    return NodeType(name=name, cpus=draw(st.integers(1, 128)), memory=draw(memories), **fields)


@st.composite
def groups(draw, name):
    node_type = draw(node_types(name))
    hosts = 1
    if node_type.topology is not None:
        chips = SliceShape(node_type.topology, node_type.accelerator_type).chips
        hosts = chips // int(node_type.custom["TPU"])
    least, most = sorted(draw(st.tuples(st.integers(0, 50), st.integers(0, 50))))
    return DesignedGroup(
        node_type=node_type,
        min_nodes=least * hosts,
        max_nodes=max(1, most) * hosts,
        num_hosts=hosts,
    )


@st.composite
def cluster_plans(draw, hosts=None):
    """Draw cluster designs. If ``hosts`` is given, each replica of each group has this number of hosts."""
    names = [f"group-{number}" for number in range(draw(st.sampled_from([1, 1, 2, 3, 12])))]
    of_group = [
        groups(name) if hosts is None else groups(name).filter(lambda one: one.num_hosts == hosts) for name in names
    ]
    return ClusterDesign(
        name=draw(st.sampled_from(["tune", "n", "trials-of-1-day-and-a-half"])),
        head=draw(st.sampled_from([HEAD, HEAD, GPU_HEAD])),
        groups=tuple(draw(group) for group in of_group),
        trials=TRIALS,
        num_trials=draw(st.integers(1, 1000)),
        idle_timeout_s=draw(st.integers(30, 600)),
        reasons=tuple(draw(st.lists(st.text(max_size=200), max_size=2))),
    )


def node_type(name, cpus, gpus=0, price=None, **fields):
    return NodeType(
        name=name,
        cpus=cpus,
        gpus=gpus,
        memory=f"{4 * cpus}GiB",
        price_per_hour=price,
        count=fields.pop("count", 100),
        **fields,
    )


def catalog(*node_types, **fields):
    return NodeCatalog(nodes=node_types, **fields)


L4 = node_type("l4", 4, 1, 0.7, accelerator_type="L4")
FOUR_L4 = node_type("l4-4", 48, 4, 4.0, accelerator_type="L4")
