"""Each advice in a message about catalogs, designs, forecasts, and the files of clusters works as it is written."""

import tempfile
from pathlib import Path

from tests.advice import AdviceTable, Row
from tests.decisions import a_decision
from tests.unit.kuberay.planted.sound import CLUSTER, LAUNCHER
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.kuberay import NodeCatalog, NodeType, WriteOptions, design_cluster, load_cluster, write_cluster
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, WorkerGroup, capacity_of
from tune_policies.kuberay.design.forecast import forecast_trials
from tune_policies.kuberay.design.offers import rank_offers
from tune_policies.kuberay.design.policy_comparison import compare_policies
from tune_policies.kuberay.design.trial_duration import TrialDuration
from tune_policies.kuberay.design.whole_machines import about_whole_machines
from tune_policies.kuberay.reading.load_cluster import read_nodes
from tune_policies.kuberay.writing import about_unselected

SLICE = {"cpus": 8, "custom": {"TPU": 4}, "accelerator_type": "TPU-V6E", "topology": "4x4"}
ON_SLICES = AcceleratorPolicy(resource="TPU", amount=4, topology="4x4", accelerator_type="TPU-V6E", num_workers=4)
L4 = {"name": "l4", "cpus": 8, "gpus": 1, "memory": "32GiB", "accelerator_type": "L4"}
CPU = {"name": "cpu", "cpus": 8, "memory": "32GiB"}
HOSTS = {
    "resources": Resources(cpus=8, custom={"TPU": 4}),
    "accelerator_type": "TPU-V6E",
    "topology": "4x4",
    "num_hosts": 4,
    "max_nodes": 8,
}
BIG = {"resources": Resources(cpus=64, memory_bytes=2**36), "max_nodes": 8}
SMALL = {"name": "small", "resources": Resources(cpus=8, memory_bytes=2**36), "max_nodes": 8}
PRICED = NodeCatalog(
    nodes=(
        NodeType(name="big", cpus=64, memory="64GiB", price_per_hour=3.2),
        NodeType(name="small", cpus=8, memory="64GiB", price_per_hour=1.6),
    )
)


def node_type(**fields):
    return NodeType(**{"name": "a", "cpus": 8, "memory": "32GiB", **fields})


def catalog(*nodes, **fields):
    return NodeCatalog(nodes=[NodeType(**{"cpus": 8, "memory": "32GiB", **node}) for node in nodes], **fields)


def like_machines(*nodes):
    """Return the sentences about node types that seem to be whole machines."""
    return "\n".join(about_whole_machines(catalog(*nodes)))


def designed(policy, *nodes, num_trials=2, **options):
    """Return the explanation of a design."""
    return design_cluster(
        policy, num_trials=num_trials, catalog=catalog(*nodes) if nodes else None, **options
    ).explain()


def written(policy, *nodes, head=None, num_trials=2, name="trials", **options):
    """Return the comments and the fields of the file of a design."""
    nodes = catalog(*nodes, head=head and NodeType(**head))
    design = design_cluster(policy, num_trials=num_trials, catalog=nodes, name=name)
    return " ".join(write_cluster(design, WriteOptions(**options)).replace("\n#", " ").split())


def unselected(policy, *nodes):
    """Return the warnings about pods of a design that may get another device."""
    design = design_cluster(policy, num_trials=2, catalog=catalog(*nodes))
    return "\n".join(about_unselected(design, WriteOptions()))


def forecast(policy, *groups, catalog=None, num_trials=None, **spec):
    """Return the cautions of a forecast for groups of workers."""
    spec = ClusterSpec(
        groups=[WorkerGroup(**{"name": f"group-{at}", **group}) for at, group in enumerate(groups)], **spec
    )
    return "\n".join(forecast_trials(policy, spec, catalog=catalog, num_trials=num_trials).cautions)


def loaded(text, *changes, read=load_cluster, **options):
    """Load a cluster from a text after changes to it, and return the sentences about what is assumed."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.yaml")
        path.write_text(text)
        return "\n".join(getattr(read(path, **options), "assumptions", ()))


LIMITS = 'limits:\n                  cpu: "8"\n                  memory: 32Gi\n'
IN_GROUP = ("      maxReplicas: 4\n      rayStartParams: {}", "      maxReplicas: 4\n      rayStartParams: ")
OF_L4 = "    resources: {CPU: 4, GPU: 1}\n"
LOCAL = LAUNCHER.replace("  type: aws\n  region: us-west-2\n", "  type: local\n  head_ip: h\n  worker_ips: [a]\n")
GCP = LAUNCHER.replace("type: aws", "type: gcp")
PRESENT = {"nvidia.com/gpu.present": "true"}


def parameters(text):
    """Return the change that sets ``rayStartParams`` of the group ``l4``."""
    return IN_GROUP[0], IN_GROUP[1] + text


CATALOG_ROWS = [
    Row(
        "NodeType(cpus=8, gpus=1, custom={'TPU': 4})",
        "Define a node type for each kind",
        "NodeType(cpus=8, gpus=1), NodeType(cpus=8, custom={'TPU': 4})",
    ),
    Row(
        "like_machines({'cpus': 4, 'memory': '16GiB'})",
        "write what pods can use, about cpus: 3, memory: 13GiB on GKE",
        "like_machines({'cpus': 3, 'memory': '13GiB'})",
    ),
    Row("NodeType(cpus='3920m')", "Write cpus: 3, because", "NodeType(cpus=3)"),
    Row("NodeType(cpus=8, accelerator_type='A100')", "set gpus", "NodeType(cpus=8, gpus=1, accelerator_type='A100')"),
    Row(
        "NodeType(cpus=8, accelerator_type='TPU-V6E')",
        "or custom such as {'TPU': 4}",
        "NodeType(cpus=8, custom={'TPU': 4}, accelerator_type='TPU-V6E')",
    ),
    Row("NodeType(**SLICE, count=3)", "use a multiple of 4", "NodeType(**SLICE, count=4)"),
    Row("NodeType(**SLICE, count=8, min_nodes=3)", "use a multiple of 4", "NodeType(**SLICE, count=8, min_nodes=4)"),
    Row(
        "NodeType(cpus=8, topology='4x4')",
        "set custom={'TPU': 4} and an accelerator_type such as 'TPU-V6E'",
        "NodeType(cpus=8, topology='4x4', custom={'TPU': 4}, accelerator_type='TPU-V6E')",
    ),
    Row(
        "NodeType(**SLICE | {'topology': '2x2', 'custom': {'TPU': 8}})",
        "Use 4 chips on its only node",
        "NodeType(**SLICE | {'topology': '2x2', 'custom': {'TPU': 4}})",
    ),
    Row(
        "NodeType(cpus=8, count=1, min_nodes=2)",
        "raise count, or lower min_nodes",
        "NodeType(cpus=8, count=2, min_nodes=2), NodeType(cpus=8, count=1, min_nodes=1)",
    ),
    Row(
        "NodeCatalog(nodes=())", "such as {count: 8, cpus: 32, gpus: 4}", "catalog({'count': 8, 'cpus': 32, 'gpus': 4})"
    ),
    Row(
        "NodeType(name='A b', cpus=1)",
        "use at most 63 lowercase letters, digits and '-'",
        "NodeType(name='a-b', cpus=1)",
    ),
    Row(
        "NodeType(cpus=1, labels={'a': 'b c'})",
        "use at most 63 letters, digits, '.', '_' and '-'",
        "NodeType(cpus=1, labels={'a': 'b.c_d-e'})",
    ),
    Row(
        "NodeType(cpus=1, gpus=1, device_key='gpu')",
        "use a name such as 'nvidia.com/gpu'",
        "NodeType(cpus=1, gpus=1, device_key='nvidia.com/gpu')",
    ),
    Row("NodeType(cpus=1, custom={'gpu': 1})", "Use gpus", "NodeType(cpus=1, gpus=1)"),
    Row(
        "NodeType(cpus=1, custom={'accelerator_type:A100': 1})",
        "use accelerator_type",
        "NodeType(cpus=1, gpus=1, accelerator_type='A100')",
    ),
    Row("catalog({'name': 'a'}, {'name': 'a'})", "Rename one of them", "catalog({'name': 'a'}, {'name': 'b'})"),
    Row(
        "catalog(CPU, head=node_type(min_nodes=1, count=1))",
        "remove its min_nodes, and use a topology of one host if it has TPUs",
        "catalog(CPU, head=node_type()), catalog(CPU, head=NodeType(**SLICE | {'topology': '2x2'}))",
    ),
    Row(
        "catalog({'gpus': 2, 'device_key': 'nvidia.com/mig-1g.10gb'})",
        "Set gpus to 1, and reduce the CPUs and the memory",
        "catalog({'gpus': 1, 'cpus': 4, 'memory': '16GiB', 'device_key': 'nvidia.com/mig-1g.10gb'})",
    ),
    Row(
        "capacity_of(catalog({'count': 20_000}))", "reduce count to at most", "capacity_of(catalog({'count': 10_000}))"
    ),
    Row(
        "catalog({'gpus': 1, 'gpu_memory': '40GiB'}).cautions",
        "Write the total that nvidia-smi reports",
        "catalog({'gpus': 1, 'gpu_memory': '40536MiB'}).cautions",
    ),
    Row(
        "catalog({'gpus': 1, 'gpu_memory': '40GiB', 'accelerator_type': 'A100'}).cautions",
        "such as gpu_memory: 40536MiB",
        "catalog({'gpus': 1, 'gpu_memory': '40536MiB', 'accelerator_type': 'A100'}).cautions",
    ),
    Row(
        "WorkerGroup(**SMALL, min_nodes=9)",
        "raise max_nodes or lower min_nodes",
        "WorkerGroup(**SMALL | {'max_nodes': 9}, min_nodes=9), WorkerGroup(**SMALL, min_nodes=8)",
    ),
]

DESIGN_ROWS = [
    Row(
        "designed(SelectingPolicy(CpuPolicy(), label_selector=A_IS_B))",
        "pass a catalog of the available nodes (--nodes)",
        "designed(SelectingPolicy(CpuPolicy(), label_selector=A_IS_B), {**CPU, 'labels': A_IS_B})",
    ),
    Row(
        "designed(GpuMemoryPolicy(gpu_memory='6GiB'))",
        "set accelerator_type (such as 'A100')",
        "designed(GpuMemoryPolicy(gpu_memory='6GiB', accelerator_type='A100'))",
    ),
    Row(
        "design_cluster(CpuPolicy(), num_trials=1, catalog=catalog(CPU), name='A b')",
        "use at most 53 lowercase letters, digits and '-'",
        "design_cluster(CpuPolicy(), num_trials=1, catalog=catalog(CPU), name='a-b')",
    ),
    Row(
        "designed(CpuPolicy(), CPU)",
        "set price_per_hour of each node type",
        "designed(CpuPolicy(), {**CPU, 'price_per_hour': 1})",
    ),
    Row(
        "designed(CpuPolicy(), {**CPU, 'memory': None})",
        "such as memory: 64GiB",
        "designed(CpuPolicy(), {**CPU, 'memory': '64GiB'})",
    ),
    Row(
        "designed(AutoscalingPolicy(GpuPolicy(num_workers=3), max_nodes_to_add=2), L4)",
        "Set max_nodes_to_add to 3 or more.",
        "designed(AutoscalingPolicy(GpuPolicy(num_workers=3), max_nodes_to_add=3), L4)",
    ),
    Row(
        "designed(GpuPolicy(), {**L4, 'count': 1})",
        "would need 2 l4 nodes: raise count",
        "designed(GpuPolicy(), {**L4, 'count': 2})",
    ),
    Row(
        "written(GpuPolicy(), {**L4, 'device_key': 'amd.com/gpu'})",
        "Change device_key or the devices",
        "written(GpuPolicy(), {**L4, 'device_key': 'nvidia.com/gpu'})",
    ),
    Row(
        "written(AcceleratorPolicy(resource='TTNPU'), {**CPU, 'custom': {'TTNPU': 1}})",
        "Set device_key to the resource that your cluster uses",
        "written(AcceleratorPolicy(resource='TTNPU'),"
        " {**CPU, 'custom': {'TTNPU': 1}, 'device_key': 'example.com/npu'})",
    ),
    Row(
        "written(AcceleratorPolicy(resource='TPU', amount=4), {**CPU, 'custom': {'TPU': 4}})",
        "set accelerator_type to one of these",
        "written(AcceleratorPolicy(resource='TPU', amount=4),"
        " {**CPU, 'custom': {'TPU': 4}, 'accelerator_type': 'TPU-V6E'})",
    ),
    Row(
        "written(AcceleratorPolicy(resource='TPU', amount=2),"
        " {**CPU, 'custom': {'TPU': 2}, 'accelerator_type': 'TPU-V6E'})",
        "Set the topology of the slices",
        "written(ON_SLICES, {'name': 'b', **SLICE, 'memory': '9GiB'})",
    ),
    Row(
        "written(SelectingPolicy(CpuPolicy(), label_selector=A_IS_B), {**CPU, 'labels': A_IS_B}, ray_version='2.50.0')",
        "use Ray 2.51 or newer",
        "written(SelectingPolicy(CpuPolicy(), label_selector=A_IS_B), {**CPU, 'labels': A_IS_B}, ray_version='2.51.0')",
    ),
    Row(
        "written(CpuPolicy(), CPU, format='cluster-yaml')",
        "Add them to node_config, such as {InstanceType: g6.xlarge}.",
        "written(CpuPolicy(), {**CPU, 'node_config': {'InstanceType': 'g6.xlarge'}}, format='cluster-yaml',"
        " head={**CPU, 'name': 'head', 'node_config': {'InstanceType': 'g6.xlarge'}})",
    ),
    Row(
        "written(CpuPolicy(), CPU)",
        "Use an image that contains both",
        "written(CpuPolicy(), CPU, image='registry.example/me/ray:1')",
    ),
    Row(
        "written(GpuPolicy(), {**L4, 'accelerator_type': 'AMD-Instinct-MI300X-OAM'})",
        "Use an image that contains it.",
        "written(GpuPolicy(), {**L4, 'accelerator_type': 'AMD-Instinct-MI300X-OAM'}, image='registry.example/rocm:1')",
    ),
    Row(
        "unselected(GpuPolicy(), {**L4, 'count': 1}, {**L4, 'name': 'b', 'accelerator_type': 'L40S', 'count': 1})",
        "Set node_selector of b in the catalog",
        "unselected(GpuPolicy(), {**L4, 'count': 1},"
        " {**L4, 'name': 'b', 'accelerator_type': 'L40S', 'count': 1, 'node_selector': {'gpu': 'l40s'}})",
    ),
    Row(
        "written(GpuPolicy(), L4, platform=None)",
        "set node_selector of the node types",
        "written(GpuPolicy(), {**L4, 'node_selector': PRESENT}, platform=None)",
    ),
    Row(
        "written(GpuPolicy(), {**L4, 'count': 1, 'node_selector': PRESENT},"
        " {**L4, 'name': 'b', 'cpus': 16, 'count': 1, 'node_selector': PRESENT}, platform=None)",
        "Set node_selector of each node type.",
        "written(GpuPolicy(), {**L4, 'count': 1, 'node_selector': PRESENT},"
        " {**L4, 'name': 'b', 'cpus': 16, 'count': 1, 'node_selector': {'a': 'b'}}, platform=None)",
    ),
    Row(
        "written(GpuPolicy(), L4)",
        "If you use another platform, set the option platform.",
        "written(GpuPolicy(), {**L4, 'node_selector': PRESENT}, platform=None)",
    ),
    Row(
        "written(CpuPolicy(), {**CPU, 'custom': {'my-gpu': 1}})",
        "Rename the custom resource",
        "written(CpuPolicy(), {**CPU, 'custom': {'mine': 1}})",
    ),
    Row(
        "written(CpuPolicy(), CPU, name='a' * 50, job='ls', image='a')",
        "use a shorter name",
        "written(CpuPolicy(), CPU, name='a' * 47, job='ls', image='a')",
    ),
    Row(
        "written(ON_SLICES, {'name': 'b', **SLICE, 'memory': '9GiB'}, format='cluster-yaml')",
        "write a manifest (format 'kuberay')",
        "written(ON_SLICES, {'name': 'b', **SLICE, 'memory': '9GiB'}, format='kuberay')",
    ),
    Row(
        "WriteOptions(image='a b')",
        "use a name such as 'registry.example/me/ray:1'",
        "WriteOptions(image='registry.example/me/ray:1')",
    ),
    Row(
        "WriteOptions(namespace='A')",
        "use at most 63 lowercase letters, digits and '-'",
        "WriteOptions(namespace='a-1')",
    ),
    Row(
        "WriteOptions(job='ls', runtime_env={'pip': ['$A']})",
        "remove these characters",
        "WriteOptions(job='ls', runtime_env={'pip': ['A']})",
    ),
    Row(
        "WriteOptions(job='ls', runtime_env={'env_vars': {'A': 0.001}})",
        "write its value in quotes",
        "WriteOptions(job='ls', runtime_env={'env_vars': {'A': '0.001'}})",
    ),
    Row(
        "WriteOptions(job='ls', runtime_env={'working_dir': '.'})",
        "use its URI, such as 's3://bucket/code.zip', or use an image that contains it",
        "WriteOptions(job='ls', runtime_env={'working_dir': 's3://bucket/code.zip'}),WriteOptions(job='ls', image='a')",
    ),
    Row(
        "WriteOptions(runtime_env={'pip': ['a']})",
        "set job to a command",
        "WriteOptions(runtime_env={'pip': ['a']}, job='ls')",
    ),
    Row(
        "WriteOptions(job='ls')",
        "set image, or runtime_env with working_dir and pip",
        "WriteOptions(job='ls', image='a'),"
        "WriteOptions(job='ls', runtime_env={'working_dir': 's3://bucket/code.zip', 'pip': ['a']})",
    ),
]

PRICE_ROWS = [
    Row(
        "compare_policies(CPU_AND_GPU, catalog({'count': 2, 'price_per_hour': 1}), num_trials=4).hint",
        "To rank the nodes to rent for 4 trials, omit their count and pass one policy",
        "rank_offers(CpuPolicy(), catalog({'price_per_hour': 1}), 4)",
    ),
    Row(
        "compare_policies(CPU_AND_GPU, catalog({'price_per_hour': 1})).hint",
        "To rank the nodes to rent for your trials, pass --num-trials and pass one policy",
        "rank_offers(CpuPolicy(), catalog({'price_per_hour': 1}), 4)",
    ),
]

DEADLINE_ROWS = [
    Row(
        "TrialDuration.of(2, 1)",
        "Set a deadline of 2 or more",
        "TrialDuration.of(2, 2)",
    ),
    Row(
        "TrialDuration.of(None, 1)",
        "Set trial_hours (--trial-hours), or omit deadline_hours (--deadline-hours)",
        "TrialDuration.of(1, 1), TrialDuration.of(None, None)",
    ),
    Row(
        "design_cluster(CpuPolicy(cpus=1), None, 2, decision=DECISION, trial_hours=1)",
        "Omit trial_hours (--trial-hours)",
        "design_cluster(CpuPolicy(cpus=1), None, 2, decision=DECISION)",
    ),
]

FORECAST_ROWS = [
    Row(
        "forecast(CpuPolicy(), {**SMALL, 'min_nodes': 20_000, 'max_nodes': 20_000})",
        "reduce the minimum of its groups",
        "forecast(CpuPolicy(), {**SMALL, 'min_nodes': 10_000, 'max_nodes': 20_000})",
    ),
    Row(
        "forecast(GpuPolicy(accelerator_type='L4'), {**OF_GPUS, 'is_type_counted': False})",
        'Write resources: {"accelerator_type:L4": "1"} in the group',
        "forecast(GpuPolicy(accelerator_type='L4'), {**OF_GPUS, 'is_type_counted': True})",
    ),
    Row(
        "forecast(GpuPolicy(accelerator_type='L4'), {**OF_GPUS, 'is_type_counted': False, 'needs_start_params': True})",
        "Write 1 as accelerator_type:L4 in the JSON of rayStartParams.resources of the group",
        "forecast(GpuPolicy(accelerator_type='L4'), {**OF_GPUS, 'is_type_counted': True, 'needs_start_params': True})",
    ),
    Row(
        "forecast(ON_SLICES, HOSTS, autoscaler_version=2)",
        "Add to its labels: ray.io/tpu-worker-id: '0', ray.io/tpu-pod-type: 'v6e-16'",
        "forecast(ON_SLICES,"
        " {**HOSTS, 'labels': {'ray.io/tpu-worker-id': '0', 'ray.io/tpu-pod-type': 'v6e-16'}}, autoscaler_version=2)",
    ),
    Row(
        "forecast(CpuPolicy(cpus=8), {'name': 'big', **BIG}, SMALL, **FOR_FOUR, autoscaler_version=1)",
        "to get nodes of 'big', set the maximum of the other groups to 0",
        "forecast(CpuPolicy(cpus=8), {'name': 'big', **BIG}, {**SMALL, 'max_nodes': 0}, **FOR_FOUR,"
        " autoscaler_version=1)",
    ),
    Row(
        "forecast(CpuPolicy(cpus=8), {'name': 'big', **BIG}, SMALL, **FOR_FOUR, autoscaler_version=2)",
        "add a label such as labels: {nodes: big} to the group, and use SelectingPolicy with label_selector: "
        "{nodes: big}",
        "forecast(SelectingPolicy(CpuPolicy(cpus=8), label_selector={'nodes': 'big'}),"
        " {'name': 'big', 'labels': {'nodes': 'big'}, **BIG}, SMALL, **FOR_FOUR, autoscaler_version=2)",
    ),
    Row(
        "forecast(CpuPolicy(cpus=8), {'name': 'big', 'labels': A_IS_B, **BIG}, SMALL, **FOR_FOUR,"
        " autoscaler_version=2)",
        "use SelectingPolicy with label_selector: {a: b}",
        "forecast(SelectingPolicy(CpuPolicy(cpus=8), label_selector=A_IS_B),"
        " {'name': 'big', 'labels': A_IS_B, **BIG}, SMALL, **FOR_FOUR, autoscaler_version=2)",
    ),
]

FILE_ROWS = [
    Row("loaded(LOCAL, (OF_L4, ''))", "write a catalog", "capacity_of(catalog(L4, CPU))"),
    Row("loaded(GCP, (OF_L4, ''))", "add the resources of a node", "loaded(GCP)"),
    Row("loaded(LAUNCHER, (OF_L4, ''), ('InstanceType: g6', 'Other: g6'))", "add resources", "loaded(LAUNCHER)"),
    Row(
        "loaded(LAUNCHER, (OF_L4, ''))",
        "Pass a catalog with this type as --nodes, or add resources",
        "loaded(LAUNCHER, (OF_L4, ''), catalog=catalog({**L4, 'name': 'g6-xlarge'})), loaded(LAUNCHER)",
    ),
    Row(
        "loaded(LAUNCHER, (', GPU: 1', ''))",
        "Pass a catalog with this type as --nodes, or add them to resources",
        "loaded(LAUNCHER, (', GPU: 1', ''), catalog=catalog({**L4, 'name': 'g6-xlarge'})), loaded(LAUNCHER)",
    ),
    Row("loaded(LOCAL, ('max_workers: 6\\n', ''))", "set the maximum number of worker nodes", "loaded(LOCAL)"),
    Row("loaded(CLUSTER, ('ray.io/v1', 'ray.io/v2'))", "use 'ray.io/v1' for a RayCluster", "loaded(CLUSTER)"),
    Row(
        "loaded(CLUSTER, ('32Gi', '32GB'), ('32Gi', '32GB'))",
        "write '32G'",
        "loaded(CLUSTER, ('32Gi', '32G'), ('32Gi', '32G'))",
    ),
    Row("loaded(CLUSTER, ('32Gi', 'much'))", "write a number such as '4', '500m' or '16Gi'", "loaded(CLUSTER)"),
    Row(
        "loaded(CLUSTER, ('cpu: \"8\"', 'cpu: 7.5'))",
        'write "7.5", in quotes',
        "loaded(CLUSTER, ('cpu: \"8\"', 'cpu: \"7.5\"'))",
    ),
    Row("loaded(CLUSTER, ('num-cpus: \"0\"', 'num-cpus: 0'))", 'write "0", in quotes', "loaded(CLUSTER)"),
    Row("loaded(CLUSTER, ('maxReplicas: 4', 'maxReplicas: \"4\"'))", "remove the quotes", "loaded(CLUSTER)"),
    Row(
        "loaded(CLUSTER, parameters('{num-gpus: \"4\"}'))",
        "Set the number of GPUs that the group passes to Ray to 2",
        "loaded(CLUSTER, parameters('{num-gpus: \"2\"}'))",
    ),
    Row(
        "loaded(CLUSTER + '---\\n' + CLUSTER.replace('trials', 'others'))",
        "select one by name (plan --name)",
        "loaded(CLUSTER + '---\\n' + CLUSTER.replace('trials', 'others'), name='others'), loaded(CLUSTER)",
    ),
    Row(
        "loaded('- {cpus: 8, gpus: 1}', read=read_nodes, name='trials')",
        "Omit --name",
        "loaded('- {cpus: 8, gpus: 1}', read=read_nodes)",
    ),
    Row(
        "loaded(CLUSTER.replace('cpu: \"8\"', 'example.com/a: 1'))",
        "set limits.cpu of the first container, or rayStartParams num-cpus",
        "loaded(CLUSTER), loaded(CLUSTER.replace('cpu: \"8\"', 'example.com/a: 1'), parameters('{num-cpus: \"8\"}'))",
    ),
    Row(
        "loaded(CLUSTER, parameters('{resources: \"mine\"}'))",
        """such as "'{\\"mine\\": 1}'", or use the group's field resources""",
        "loaded(CLUSTER, parameters(WITH_JSON)),"
        'loaded(CLUSTER, parameters(\'{}\\n      resources: {CPU: "8", GPU: "2", mine: "1"}\'))',
    ),
    Row(
        "written(CpuPolicy(), {**CPU, 'custom': {'a b': 1}})",
        "use letters, digits, '_', '-', '.', ':', '/', '@' and '+'",
        "written(CpuPolicy(), {**CPU, 'custom': {'a_b-c.d': 1}})",
    ),
]
ROWS = [*CATALOG_ROWS, *DESIGN_ROWS, *PRICE_ROWS, *DEADLINE_ROWS, *FORECAST_ROWS, *FILE_ROWS]
OF_NODES = "nodes on a platform of Kubernetes"
ELSEWHERE = {
    "create a node pool": OF_NODES,
    "create a managed node group": OF_NODES,
    "create a NodePool": OF_NODES,
    "provide N nodes": OF_NODES,
    "Add a taint to nodes with GPUs": OF_NODES,
    "Remove it if all your nodes have GPUs": OF_NODES,
    "Set storage_path to a bucket or a volume": "a bucket",
    "stdin is closed": "a pipe: tests/package/planner/test_cli.py",
    "bytes. Remove unneeded documents": "a large file: tests/unit/planner/test_documents.py",
    "has TPU-V7X, which the autoscaler": "the same advice as for labels",
    "because all hosts of a slice are added together": "a design that only a program can make",
}
"""Messages with an advice that is not in the table, and what following the advice requires."""

PARTS = tuple(f"tune_policies/kuberay/{part}" for part in ("design", "reading", "writing"))
WITH_JSON = """{resources: "'{\\"mine\\": 1}'"}"""
OF_GPUS = {"resources": Resources(cpus=8, gpus=1), "accelerator_type": "L4", "max_nodes": 4}
FUNCTIONS = (
    NodeType,
    NodeCatalog,
    WorkerGroup,
    WriteOptions,
    CpuPolicy,
    GpuPolicy,
    GpuMemoryPolicy,
    SelectingPolicy,
    AcceleratorPolicy,
    AutoscalingPolicy,
    design_cluster,
    capacity_of,
    node_type,
    catalog,
    designed,
    like_machines,
    unselected,
    written,
    forecast,
    loaded,
    parameters,
    read_nodes,
)
NAMES = {
    "DECISION": a_decision(),
    **{value.__name__: value for value in (*FUNCTIONS, read_nodes, TrialDuration, compare_policies, rank_offers)},
    "SLICE": SLICE,
    "ON_SLICES": ON_SLICES,
    "L4": L4,
    "CPU": CPU,
    "HOSTS": HOSTS,
    "BIG": BIG,
    "SMALL": SMALL,
    "PRICED": PRICED,
    "CLUSTER": CLUSTER,
    "LAUNCHER": LAUNCHER,
    "LOCAL": LOCAL,
    "GCP": GCP,
    "OF_L4": OF_L4,
    "PRESENT": PRESENT,
    "WITH_JSON": WITH_JSON,
    "OF_GPUS": OF_GPUS,
    "FOR_FOUR": {"catalog": PRICED, "num_trials": 4},
    "A_IS_B": {"a": "b"},
    "CPU_AND_GPU": [("cpu.yaml", CpuPolicy()), ("gpu.yaml", GpuPolicy())],
}

TABLE = AdviceTable(parts=PARTS, rows=ROWS, elsewhere=ELSEWHERE, names=NAMES)
