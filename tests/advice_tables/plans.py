"""Each advice in a message about a plan, its slots or the cluster works as it is written."""

import io
import json

from rich.console import Console

import tune_policies
from tests.advice import CPUS, ONE_GPU, SHARED, AdviceTable, Row, named
from tests.clusters import GIB
from tune_policies import ClusterCapacity, GpuMemoryProfile, NodeCapacity, NodeTypeCapacity, Resources
from tune_policies.cluster.cluster_view import cluster_view
from tune_policies.kuberay import NodeCatalog
from tune_policies.placement.request import Request
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.testing import check_policy

LIMITED = ClusterCapacity(nodes=(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), usable_cpus=2),))
LISTED = ClusterCapacity.of(ONE_GPU.nodes[0].model_copy(update={"accelerator_type": "A100"}))
WITH_TWO_CPUS = ClusterCapacity.of(Resources(cpus=2, gpus=1))
UNKNOWN_TYPES = ClusterCapacity(nodes=CPUS.nodes, node_types=None)
GROWING = ClusterCapacity(
    nodes=CPUS.nodes, node_types=(NodeTypeCapacity(name="big", resources=Resources(cpus=8), max_nodes_to_add=2),)
)
GROWS = GpuMemoryProfile(
    measurements=[GpuMemoryMeasurement(config={"n": n}, total_bytes=n * GIB) for n in (1, 2, 4, 8)],
)


def printed(view):
    """Return a view as text."""
    console = Console(file=io.StringIO(), width=200)
    console.print(view)
    return console.file.getvalue()


def saved(policy):
    """Write a policy to JSON, and read it."""
    return tune_policies.ResourcePolicy.from_dict(json.loads(policy.to_json()))


ROWS = [
    Row("GpuPolicy().plan(CPUS)", "policy | CpuPolicy()", "(GpuPolicy() | CpuPolicy()).plan(CPUS)"),
    Row("GpuPolicy(gpus=2).plan(ONE_GPU)", "at most 1 GPU per trial", "GpuPolicy(gpus=1).plan(ONE_GPU)"),
    Row("CpuPolicy(cpus=8).plan(CPUS)", "at most 4 CPUs per trial", "CpuPolicy(cpus=4).plan(CPUS)"),
    Row("CpuPolicy(num_workers=9).plan(CPUS)", "Set num_workers=4", "CpuPolicy(num_workers=4).plan(CPUS)"),
    Row("CpuPolicy(memory='9GiB').plan(CPUS)", "at most 8GiB of host", "CpuPolicy(memory='8GiB').plan(CPUS)"),
    Row(
        "GpuPolicy(accelerator_type='A10O').plan(TYPED)",
        "Did you mean 'A100'? Omit accelerator_type",
        "GpuPolicy(accelerator_type='A100').plan(TYPED), GpuPolicy().plan(TYPED)",
    ),
    Row("CpuPolicy(custom={'x': 1}).plan(CPUS)", "Request no x", "CpuPolicy().plan(CPUS)"),
    Row(
        "AcceleratorPolicy(resource='TPU').plan(CPUS)",
        "policy | CpuPolicy()",
        "(AcceleratorPolicy(resource='TPU') | CpuPolicy()).plan(CPUS)",
    ),
    Row(
        "AcceleratorPolicy(**SLICE, amount=3, num_workers=5)",
        "Request 2 or 4",
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=4)",
    ),
    Row(
        "AcceleratorPolicy(resource='TPU', amount=3)",
        "Request 2 or 4",
        "AcceleratorPolicy(resource='TPU', amount=2), AcceleratorPolicy(resource='TPU', amount=4)",
    ),
    Row(
        "CpuPolicy().plan(CPUS).scaling_config()",
        "Set num_workers=1",
        "CpuPolicy(num_workers=1).plan(CPUS).scaling_config()",
    ),
    Row(
        "SelectingPolicy(CpuPolicy(), label_selector={'a b': 'c'})",
        "Use letters, digits, '.', '_' and '-'",
        "SelectingPolicy(CpuPolicy(), label_selector={'a.b_c-d': 'c'})",
    ),
    Row(
        "SelectingPolicy(CpuPolicy(), label_selector={'a': 'in(b'})",
        "Write 'a', '!a', 'in(a,b)' or '!in(a,b)'",
        "[SelectingPolicy(CpuPolicy(), label_selector={'a': text}) for text in ('a', '!a', 'in(a,b)', '!in(a,b)')]",
    ),
    Row(
        "CpuPolicy().plan(CPUS).remote_options(reuse='x')",
        "'release'",
        "CpuPolicy().plan(CPUS).remote_options(reuse='release')",
    ),
    Row(
        "GpuPolicy(accelerator_type='zzz')",
        "such as A100, H100, L4 or GeForce-RTX-4090",
        "[GpuPolicy(accelerator_type=name) for name in ('A100', 'H100', 'L4', 'GeForce-RTX-4090')]",
    ),
    Row(
        "AcceleratorPolicy(resource='TPU', accelerator_type='A100')",
        "Use one of TPU-V2",
        "AcceleratorPolicy(resource='TPU', accelerator_type='TPU-V2')",
    ),
    Row("AcceleratorPolicy(resource='zzz')", ". Use one of FURIOSA, GPU, HPU", "AcceleratorPolicy(resource='FURIOSA')"),
    Row(
        "AcceleratorPolicy(**SLICE | {'topology': '9x9x9'}, amount=4, num_workers=4)",
        ". Use one of 1x1, 2x2",
        "AcceleratorPolicy(**SLICE | {'topology': '2x2'}, amount=4, num_workers=1)",
    ),
    Row(
        "printed(cluster_view(UNKNOWN_TYPES))",
        "Pass the cluster file with --cluster-config",
        "printed(cluster_view(CPUS))",
    ),
    Row(
        "TrialSlot(num_workers=2, trial=Resources(cpus=1), max_concurrent_trials=1)",
        "Set both or neither",
        "TrialSlot(num_workers=0, trial=Resources(cpus=1), max_concurrent_trials=1)",
    ),
    Row(
        "TrialSlot(num_workers=2, max_workers=1, **FOR_SLOT)",
        "Set num_workers above 0, and max_workers to at least num_workers",
        "TrialSlot(num_workers=2, max_workers=2, **FOR_SLOT)",
    ),
    Row(
        "CpuPolicy(cpus=4).plan(ClusterCapacity())",
        "Start Ray nodes, then probe again.",
        "CpuPolicy(cpus=4).plan(CPUS)",
    ),
    Row(
        "GpuPolicy(accelerator_type='A100').plan(CPUS)",
        "Request CPUs, or add a node of type A100.",
        "CpuPolicy().plan(CPUS), GpuPolicy(accelerator_type='A100').plan(TYPED)",
    ),
    Row(
        "CpuPolicy(cpus=8).plan(GROWING)",
        "wrap the policy in AutoscalingPolicy",
        "AutoscalingPolicy(CpuPolicy(cpus=8)).plan(GROWING)",
    ),
    Row("CpuPolicy(cpus=8).plan(UNKNOWN_TYPES)", "Call plan_when_ready", "CpuPolicy(cpus=4).plan(UNKNOWN_TYPES)"),
    Row(
        "CpuPolicy(cpus=8, memory='9GiB').plan(CPUS)",
        "Add a node with more",
        "CpuPolicy(cpus=4, memory='8GiB').plan(CPUS)",
    ),
    Row(
        "GpuPolicy().plan(ONE_GPU).explain(CPUS)",
        "Pass the capacity for which the plan was made",
        "GpuPolicy().plan(ONE_GPU).explain(ONE_GPU)",
    ),
    Row(
        "CpuPolicy(num_workers=1).plan(CPUS).scaling_config(use_gpu=True)",
        "Change the policy to use another value",
        "GpuPolicy(num_workers=1).plan(ONE_GPU).scaling_config()",
    ),
    Row("CpuPolicy().plan(CPUS).bundles(10**6)", "Pass a smaller num_trials", "CpuPolicy().plan(CPUS).bundles(10)"),
    Row(
        "ByConfigPolicy('algo', {'a': CpuPolicy()}).plan(CPUS).slot_for({'algo': 'b'})",
        "Add a policy for this value, or set default.",
        "ByConfigPolicy('algo', {'a': CpuPolicy(), 'b': CpuPolicy()}).plan(CPUS).slot_for({'algo': 'b'}),"
        "ByConfigPolicy('algo', {'a': CpuPolicy()}, default=CpuPolicy()).plan(CPUS).slot_for({'algo': 'b'})",
    ),
    Row(
        "ByConfigPolicy('algo', {'a': CpuPolicy()}).plan(CPUS).slot_for({'alg': 'a'})",
        "Change the key of the policy, add the value to the search space, or set default.",
        "ByConfigPolicy('alg', {'a': CpuPolicy()}).plan(CPUS).slot_for({'alg': 'a'})",
    ),
    Row(
        "ByConfigPolicy(lambda config: config['b'], {'a': CpuPolicy()}).plan(CPUS).slot_for({})",
        "Change the function so that it returns a value for each config.",
        "ByConfigPolicy(lambda config: config.get('b', 'a'), {'a': CpuPolicy()}).plan(CPUS).slot_for({})",
    ),
    Row(
        "saved(ByConfigPolicy(len, {'a': CpuPolicy()}))",
        "or use the name of a value in the config as the key",
        "saved(ByConfigPolicy('algo', {'a': CpuPolicy()}))",
    ),
    Row(
        "check_policy(CpuPolicy(custom={'never': 1}), num_clusters=2)",
        "Pass clusters=[…] for which it has a plan",
        "check_policy(CpuPolicy(custom={'never': 1}), num_clusters=2,"
        " clusters=[ClusterCapacity.of(Resources(cpus=8, custom={'never': 2}))])",
    ),
    Row(
        "GpuMemoryPolicy(profile=GROWS).plan(ONE_GPU).slot_for({'n': 64})",
        "Remove the config, change it to need less memory",
        "GpuMemoryPolicy(profile=GROWS).plan(ONE_GPU).slot_for({'n': 1})",
    ),
    Row("Request(worker=Resources())", "Set CPUs or GPUs above 0", "Request(worker=Resources(cpus=1))"),
    Row("GpuPolicy().plan(LIMITED).explain()", "with --num-cpus=2", "GpuPolicy().plan(WITH_TWO_CPUS).explain()"),
    Row("CpuPolicy().plan(CPUS).plot()", "Write plan.plot(capacity)", "CpuPolicy().plan(CPUS).plot(CPUS)"),
    Row(
        "CpuPolicy().plan(CPUS).plot('a.svg')",
        'Write plan.plot(capacity).save("a.svg")',
        "CpuPolicy().plan(CPUS).plot(CPUS).save",
    ),
    Row(
        "CpuPolicy().plan(CPUS).explain(CpuPolicy())",
        "Write plan.explain(capacity)",
        "CpuPolicy().plan(CPUS).explain(CPUS)",
    ),
    Row(
        "NodeCatalog.from_dict([{'cpus': 8, 'gpus': 1, 'accelerator_type': 'NVIDIA A100-SXM4-80GB'}])",
        "did you mean 'A100'?",
        "NodeCatalog.from_dict([{'cpus': 8, 'gpus': 1, 'accelerator_type': 'A100'}])",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='20GiB').plan(TYPED).explain()",
        "list each device with its memory_bytes in the capacity",
        "GpuMemoryPolicy(gpu_memory='10GiB').plan(LISTED).explain()",
    ),
    Row(
        "ReservingPolicy(CpuPolicy(), cpus=9).plan(CPUS)",
        "Reserve less, or add nodes.",
        "ReservingPolicy(CpuPolicy(), cpus=3).plan(CPUS)",
    ),
]

NAMES = {
    **SHARED,
    **named(NodeCatalog, Request, TrialSlot, check_policy, cluster_view, printed, saved),
    "FOR_SLOT": {"per_worker": Resources(cpus=1), "trial": Resources(), "max_concurrent_trials": 1},
    "GROWING": GROWING,
    "GROWS": GROWS,
    "LIMITED": LIMITED,
    "LISTED": LISTED,
    "UNKNOWN_TYPES": UNKNOWN_TYPES,
    "WITH_TWO_CPUS": WITH_TWO_CPUS,
}

ELSEWHERE = {
    "install nvidia-ml-py": "a package that is missing",
    "the plan needs ScalingConfig(": "another version of Ray",
    "to get these, select a label of their node type": "an autoscaler: tests/unit/planner/test_launch_forecast.py",
    "not all slots with … fit the cluster": "the same advice as for idle resources",
    "Use tuples instead of lists and sets": "a policy of a user: tests/unit/planner/test_policy_conformance.py",
    **dict.fromkeys(
        (
            "or add nodes, because the workers would not start",
            "Request num_workers=…",
            "Request less for each worker",
            "Pass max_concurrent_trials=… to Tune",
            "Reserve less for the driver",
            "Stop other programs, request fewer workers",
        ),
        "runs that wait for each other: tests/unit/planner/test_gang_deadlock.py",
    ),
}
"""Messages with an advice that is not in the table, and what following the advice requires."""

PARTS = tuple(f"tune_policies/{part}" for part in ("cluster", "placement", "plan", "oom", "testing"))

TABLE = AdviceTable(parts=PARTS, rows=ROWS, elsewhere=ELSEWHERE, names=NAMES)
