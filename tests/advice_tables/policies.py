"""Each advice in a message about the fields of a policy, or about what one kind of policy can plan, works."""

import math
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import tune_policies
from tests.advice import ONE_GPU, SHARED, AdviceTable, Row, named
from tests.clusters import GIB
from tests.decisions import a_decision
from tune_policies import (
    ClusterCapacity,
    CpuPolicy,
    GpuDevice,
    GpuMemoryProfile,
    NodeCapacity,
    NodeTypeCapacity,
    Resources,
)
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.policies.policy_file import load_runtime_env
from tune_policies.values.field_types import check_names

LABELED = NodeCapacity(node_id="a", resources=Resources(cpus=4), labels={"a": "b"})
READ_NOW = ONE_GPU.model_copy(update={"read_at": datetime(2027, 1, 1, tzinfo=UTC)})
OF_UNKNOWN_SIZE = ClusterCapacity(
    nodes=(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), accelerator_type="AMD-Instinct-MI300A"),)
)
OTHER_TPU = NodeCapacity(node_id="other", resources=Resources(cpus=8, custom={"TPU": 4}), accelerator_type="TPU-V6E")
PROFILE = GpuMemoryProfile(measurements=(GpuMemoryMeasurement(config={"n": 1}, total_bytes=GIB),))


def simulated(**changes):
    node = NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), has_simulated_gpus=True, **changes)
    return ClusterCapacity(nodes=(node,))


def two_gpus(num_listed):
    """Return a node with two GPUs. The memory of some is listed."""
    devices = tuple(GpuDevice(index=index, name="GPU", memory_bytes=16 * GIB) for index in range(num_listed))
    return ClusterCapacity.of(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=2), devices=devices))


def addable_gpus(label_of_large):
    """Return a cluster whose autoscaler can add A100s with 8 GiB and with 80 GiB."""
    node_types = [
        NodeTypeCapacity(
            name=f"{gib} GiB",
            resources=Resources(cpus=4, gpus=1),
            max_nodes_to_add=1,
            accelerator_type="A100",
            devices=(GpuDevice(index=0, name="GPU", memory_bytes=gib * GIB),),
            labels={"ray.io/accelerator-type": label},
        )
        for gib, label in ((8, "A100"), (80, label_of_large))
    ]
    return ClusterCapacity(node_types=tuple(node_types))


def slices(topology):
    """Return the hosts of a TPU slice with Ray's labels."""
    number = math.prod(map(int, topology.split("x")))
    hosts = [
        NodeCapacity(
            node_id=f"host-{at}",
            resources=Resources(cpus=8, custom={"TPU": 4} | ({} if at else {f"TPU-v6e-{number}-head": 1})),
            accelerator_type="TPU-V6E",
            labels={
                "ray.io/tpu-slice-name": "slice",
                "ray.io/tpu-worker-id": str(at),
                "ray.io/tpu-topology": topology,
                "ray.io/tpu-pod-type": f"v6e-{number}",
            },
        )
        for at in range(number // 4)
    ]
    return ClusterCapacity(nodes=tuple(hosts))


def another_policy(name):
    """Define a policy with this name, in this module."""
    methods = {"plan": lambda self, capacity: CpuPolicy().plan(capacity), "__module__": __name__}
    return type(name, (tune_policies.ResourcePolicy,), methods)


def read_environment(text):
    """Read a file with a runtime environment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "environment.yaml")
        path.write_text(text)
        return load_runtime_env(path)


def nested(depth):
    """Build a policy that is nested this deeply."""
    data = {"kind": "CpuPolicy"}
    for _ in range(depth):
        data = {"kind": "CappedPolicy", "inner": data, "max_concurrent_trials": 2}
    return tune_policies.ResourcePolicy.from_dict(data)


ROWS = [
    Row("GpuPolicy(gpus=1.5)", "Request 1 or 2", "GpuPolicy(gpus=1), GpuPolicy(gpus=2)"),
    Row("GpuPolicy(gpu=1)", "did you mean 'gpus'?", "GpuPolicy(gpus=1)"),
    Row("GpuMemoryPolicy(gpu_memory=8)", "Write '8GiB'", "GpuMemoryPolicy(gpu_memory='8GiB')"),
    Row("GpuMemoryPolicy(gpu_memory='8g')", "a string such as '6GiB'", "GpuMemoryPolicy(gpu_memory='6GiB')"),
    Row("GpuMemoryPolicy()", "gpu_memory, such as '6GiB'", "GpuMemoryPolicy(gpu_memory='6GiB')"),
    Row("CpuPolicy(memory=4)", "Write '4GiB'", "CpuPolicy(memory='4GiB')"),
    Row("CpuPolicy(cpus=0)", "such as 1 or 0.5", "CpuPolicy(cpus=1), CpuPolicy(cpus=0.5)"),
    Row("CpuPolicy(cpus=0)", "CappedPolicy(CpuPolicy(cpus=0.01), 4)", "CappedPolicy(CpuPolicy(cpus=0.01), 4)"),
    Row("CpuPolicy(2)", "Write CpuPolicy(cpus=2)", "CpuPolicy(cpus=2)"),
    Row("EvenSplitPolicy(3)", "Write EvenSplitPolicy(num_trials=3)", "EvenSplitPolicy(num_trials=3)"),
    Row(
        "GpuMemoryPolicy(gpu_memory='20GiB').plan(ONE_GPU)",
        "at most 16GiB of GPU memory",
        "GpuMemoryPolicy(gpu_memory='16GiB').plan(ONE_GPU)",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(UNREAD)",
        "Set their accelerator type",
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(TYPED)",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(UNREAD)",
        "or use GpuPolicy with a fraction of a GPU",
        "GpuPolicy(gpus=0.5).plan(UNREAD)",
    ),
    Row("GpuPolicy(min_trials=5).plan(ONE_GPU)", "Set min_trials=1", "GpuPolicy(min_trials=1).plan(ONE_GPU)"),
    Row("GpuPolicy(num_workers=(2, 1))", "Use (1, 2)", "GpuPolicy(num_workers=(1, 2))"),
    Row(
        "SelectingPolicy(CpuPolicy(), label_selector={'a': 'b'}).plan(CPUS)",
        "add a node with these labels",
        "SelectingPolicy(CpuPolicy(), label_selector={'a': 'b'}).plan(ClusterCapacity(nodes=(LABELED,)))",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB', on_unenforced_limit='warn')",
        'run(train_fn, policy, on_unenforced_limit="warn")',
        "tuner(print, GpuMemoryPolicy(gpu_memory='4GiB'), on_unenforced_limit='warn')",
    ),
    Row(
        "GpuPolicy().plan(32)",
        "GpuPolicy().plan(ClusterCapacity.of(Resources(cpus=32)))",
        "CpuPolicy().plan(ClusterCapacity.of(Resources(cpus=32)))",
    ),
    Row(
        "MixedPolicy([GpuPolicy(), CpuPolicy()])",
        "Write MixedPolicy(GpuPolicy(), CpuPolicy())",
        "MixedPolicy(GpuPolicy(), CpuPolicy())",
    ),
    Row("GpuPolicy() or CpuPolicy()", "GpuPolicy() | CpuPolicy()", "GpuPolicy() | CpuPolicy()"),
    Row("bool(GpuPolicy())", "'policy is not None'", "GpuPolicy() is not None"),
    Row("GpuPolicy(custom={'TPU': 4})", "Use AcceleratorPolicy(resource='TPU')", "AcceleratorPolicy(resource='TPU')"),
    Row("GpuPolicy(custom={'GPU': 1})", "Use the field gpus", "GpuPolicy(gpus=1)"),
    Row(
        "AcceleratorPolicy(**SLICE, num_workers=3)", "Set num_workers=16", "AcceleratorPolicy(**SLICE, num_workers=16)"
    ),
    Row(
        "AcceleratorPolicy(resource='HPU', topology='4x4')",
        "Set resource='TPU', an accelerator_type such as 'TPU-V6E', and num_workers to the number of chips",
        "AcceleratorPolicy(resource='TPU', topology='4x4', accelerator_type='TPU-V6E', num_workers=16)",
    ),
    Row(
        "AcceleratorPolicy(resource='TPU', num_workers=2)",
        "set num_workers=1",
        "AcceleratorPolicy(resource='TPU', num_workers=1)",
    ),
    Row(
        "AcceleratorPolicy(resource='TPU', num_workers=2)",
        "Set topology and accelerator_type",
        "AcceleratorPolicy(resource='TPU', num_workers=16, topology='4x4', accelerator_type='TPU-V6E')",
    ),
    Row(
        "AcceleratorPolicy(resource='TPU', topology='2x2', accelerator_type='TPU-V6E', amount=8, num_workers=1)",
        "Set amount=4",
        "AcceleratorPolicy(resource='TPU', topology='2x2', accelerator_type='TPU-V6E', amount=4, num_workers=1)",
    ),
    Row("CpuPolicy().copy()", "tune.run(train_fn, scheduler=PolicyScheduler(policy))", "PolicyScheduler(CpuPolicy())"),
    Row("CpuPolicy().copy()", "use model_copy(update={…})", "CpuPolicy().model_copy(update={'cpus': 2})"),
    Row(
        "BenchmarkedPolicy(a_decision(), size='n', objective='cost').plan(ONE_GPU)",
        "use objective='time'",
        "BenchmarkedPolicy(a_decision(), size='n', objective='time', accept_other_hardware=True)",
    ),
    Row(
        "tune_policies.build_torch_trainer",
        "from tune_policies.trainers import build_torch_trainer",
        "__import__('tune_policies.trainers').trainers.build_torch_trainer",
    ),
    Row(
        "AcceleratorPolicy(**SLICE, num_workers=(4, 8))",
        "Set a single number",
        "AcceleratorPolicy(**SLICE, num_workers=16)",
    ),
    Row(
        "AcceleratorPolicy(**SLICE, num_workers=16, cpus=0)",
        "Set a number above 0",
        "AcceleratorPolicy(**SLICE, num_workers=16, cpus=1)",
    ),
    Row(
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=8).plan(slices('4x4'))",
        "Set num_workers=4, or add slices.",
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=4).plan(slices('4x4'))",
    ),
    Row(
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=4).plan(slices('4x8'))",
        "Set topology='4x8', or add a 4x4 slice.",
        "AcceleratorPolicy(**SLICE | {'topology': '4x8'}, amount=4, num_workers=8).plan(slices('4x8'))",
    ),
    Row(
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=4).plan(CPUS)",
        "or add a 4x4 slice. Its hosts must have Ray's labels for TPU slices, such as ray.io/tpu-topology.",
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=4).plan(slices('4x4'))",
    ),
    Row(
        "ByConfigPolicy('a', {(1, 2): CpuPolicy()})",
        "Use a function as the key, which returns a string or a number for each config",
        "ByConfigPolicy(lambda config: len(config['a']), {2: CpuPolicy()})",
    ),
    Row(
        "ByConfigPolicy('a', {'b': GpuPolicy(gpus=0.5), 'c': GpuPolicy(gpus=1 / 3)}).plan(ONE_GPU).explain()",
        "request the same fraction",
        "ByConfigPolicy('a', {'b': GpuPolicy(gpus=0.5), 'c': GpuPolicy(gpus=0.5)}).plan(ONE_GPU).explain()",
    ),
    Row(
        "AutoPolicy(gpu_memory='1GiB', profile=PROFILE)",
        "Set only one of them",
        "AutoPolicy(gpu_memory='1GiB'), AutoPolicy(profile=PROFILE)",
    ),
    Row(
        "BenchmarkedPolicy(a_decision('H100'), size='n', cpu=CpuPolicy(cpus=1)).plan(TYPED)",
        "restrict trials to nodes with H100, or set accept_other_hardware=True.",
        "BenchmarkedPolicy(a_decision('H100'), size='n', cpu=CpuPolicy(cpus=1), accept_other_hardware=True)"
        ".plan(TYPED)",
    ),
    Row(
        "BenchmarkedPolicy(a_decision(), size='n', max_age_days=1).plan(READ_NOW)",
        "or increase max_age_days.",
        "BenchmarkedPolicy(a_decision(), size='n', max_age_days=9999).plan(READ_NOW)",
    ),
    Row(
        "BenchmarkedPolicy(a_decision(), size='n', gpu=ByConfigPolicy('a', {'b': GpuPolicy()})).plan(ONE_GPU)",
        "Use another policy, such as GpuPolicy",
        "BenchmarkedPolicy(a_decision(), size='n', gpu=GpuPolicy()).plan(ONE_GPU)",
    ),
    Row(
        "EvenSplitPolicy(num_trials=2, min_cpus=0)",
        "Set at least one of them above 0",
        "EvenSplitPolicy(num_trials=2, min_cpus=1), EvenSplitPolicy(num_trials=2, min_cpus=0, min_gpus=1)",
    ),
    Row("GpuPolicy(gpus=0)", "Set a number above 0, or use CpuPolicy", "GpuPolicy(gpus=1), CpuPolicy()"),
    Row(
        "GpuPolicy(min_gpu_memory='40GiB').plan(ONE_GPU)",
        "Request less GPU memory",
        "GpuPolicy(min_gpu_memory='16GiB').plan(ONE_GPU)",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(OF_UNKNOWN_SIZE)",
        "Set gpu_memory of the node type in the catalog (in Python, list each device with its memory_bytes",
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(ONE_GPU)",
    ),
    Row("MixedPolicy(CpuPolicy(), speeds=(1, 2))", "Omit speeds if they are unknown", "MixedPolicy(CpuPolicy())"),
    Row(
        "MixedPolicy(GpuMemoryPolicy(profile=PROFILE))",
        "Set gpu_memory to the need of the largest config instead",
        "MixedPolicy(GpuMemoryPolicy(gpu_memory='6GiB'))",
    ),
    Row(
        "MixedPolicy(ByConfigPolicy('a', {'b': CpuPolicy()}))",
        "Use the policies inside it",
        "MixedPolicy(CpuPolicy())",
    ),
    Row("nested(200)", "Reduce the nesting", "nested(20)"),
    Row(
        "CpuPolicy.from_dict({'kind': 'GpuPolicy'})",
        "Use ResourcePolicy.from_dict(data)",
        "ResourcePolicy.from_dict({'kind': 'GpuPolicy'})",
    ),
    Row(
        "MixedPolicy(CpuPolicy(), policies=(CpuPolicy(),))",
        "pass the policies either as positional arguments or as policies=(…), not both",
        "MixedPolicy(CpuPolicy()), MixedPolicy(policies=(CpuPolicy(),))",
    ),
    Row("MixedPolicy(*[CpuPolicy()] * 999)", "Remove some of them", "MixedPolicy(*[CpuPolicy()] * 9)"),
    Row("CpuPolicy(custom={'cpu': 1})", "Use cpus", "CpuPolicy(cpus=1)"),
    Row(
        "CpuPolicy(custom={'accelerator_type:A100': 1})",
        "Use accelerator_type",
        "GpuPolicy(accelerator_type='A100')",
    ),
    Row("Resources(custom={'CPU': 1})", "Use the field cpus", "Resources(cpus=1)"),
    Row(
        "Resources(custom={'memory': 1})",
        "Use the field memory, or memory_bytes of Resources",
        "CpuPolicy(memory='1GiB'), Resources(memory_bytes=1)",
    ),
    Row("Resources(custom={'object_store_memory': 1})", "Omit it", "Resources()"),
    Row(
        "CpuPolicy(custom={'a': 1}).custom.update(b=1)",
        "Create a changed copy of the value",
        "CpuPolicy(custom={'a': 1}).model_copy(update={'custom': {'b': 1}})",
    ),
    Row("ReservingPolicy(CpuPolicy(), inner=CpuPolicy())", "Pass each field only once", "ReservingPolicy(CpuPolicy())"),
    Row(
        "ReservingPolicy(GpuMemoryPolicy(gpu_memory='10GiB'), gpu_memory='20GiB').plan(ONE_GPU)",
        "Reserve less GPU memory.",
        "ReservingPolicy(GpuMemoryPolicy(gpu_memory='10GiB'), gpu_memory='4GiB').plan(ONE_GPU)",
    ),
    Row(
        "AutoscalingPolicy(ReservingPolicy(GpuPolicy(), gpu_memory='9GiB')).plan(addable_gpus(label_of_large='A100'))",
        "Give node types with different GPU memory different labels ray.io/accelerator-type",
        "AutoscalingPolicy(ReservingPolicy(GpuPolicy(), gpu_memory='9GiB')).plan(addable_gpus(label_of_large='large'))",
    ),
    Row(
        "AutoscalingPolicy(GpuMemoryPolicy(gpu_memory='9GiB')).plan(addable_gpus(label_of_large='A100'))",
        "Give node types with different GPU memory different labels ray.io/accelerator-type, or request less",
        "AutoscalingPolicy(GpuMemoryPolicy(gpu_memory='9GiB')).plan(addable_gpus(label_of_large='large'))",
    ),
    Row(
        "str(MixedPolicy(ReservingPolicy(CpuPolicy(cpus=2), cpus=1), CpuPolicy()).plan(CPUS))",
        "put ReservingPolicy or FreeCapacityPolicy around the MixedPolicy",
        "ReservingPolicy(MixedPolicy(CpuPolicy(cpus=2), CpuPolicy()), cpus=1).plan(CPUS)",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(two_gpus(num_listed=1))",
        "list each device with its memory_bytes",
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(two_gpus(num_listed=2))",
    ),
    Row(
        "tune_policies.ClusterCapacity.of(Resources(cpus=1)) and CpuPolicy().plan()",
        "Write plan_on_cluster(CpuPolicy()) for the running cluster",
        "tune_policies.plan_on_cluster",
    ),
    Row(
        "tune_policies.load_cluster",
        "Write: from tune_policies.kuberay import load_cluster",
        "tune_policies.kuberay.load_cluster",
    ),
    Row("another_policy('CpuPolicy')", "Rename the class", "another_policy('MyOwnPolicy')"),
    Row(
        "read_environment('- a')",
        "Write fields such as working_dir and pip",
        "read_environment('{working_dir: a, pip: [b]}')",
    ),
    Row(
        "SelectingPolicy(AcceleratorPolicy(**SLICE, amount=4, num_workers=4), exclude_nodes=['other'])"
        ".plan(ClusterCapacity(nodes=(*slices('4x4').nodes, OTHER_TPU)))",
        "select slices by accelerator_type or topology",
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=4).plan("
        "ClusterCapacity(nodes=(*slices('4x4').nodes, OTHER_TPU)))",
    ),
    Row("FirstFeasiblePolicy(GpuPolicy, CpuPolicy())", "Write GpuPolicy(…) instead of", "GpuPolicy() | CpuPolicy()"),
    Row("GpuPolicy() | CpuPolicy", "Write CpuPolicy(…) instead of the class", "GpuPolicy() | CpuPolicy()"),
    Row("CpuPolicy.plan(CPUS)", "Write CpuPolicy(…).plan(capacity)", "CpuPolicy().plan(CPUS)"),
    Row("CpuPolicy.from_json({'cpus': 2})", "For a mapping, use from_dict", "CpuPolicy.from_dict({'cpus': 2})"),
    Row(
        "setattr(CpuPolicy(), 'cpus', 2)",
        "model_copy(update={'cpus': 2})",
        "CpuPolicy().model_copy(update={'cpus': 2})",
    ),
    Row(
        "ByConfigPolicy(lambda config: config['a'], {'b': CpuPolicy()}).to_yaml()",
        "Use the name of a value in the config",
        "ByConfigPolicy('a', {'b': CpuPolicy()}).to_yaml()",
    ),
    Row("check_names('a', name='names')", ". Use ['a']", "check_names(['a'], name='names')"),
    Row(
        "GpuPolicy(gpus=0.5).plan(UNREAD).explain()",
        "set cpus= to change",
        "GpuPolicy(gpus=0.5, cpus=1).plan(UNREAD).explain()",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(simulated())",
        'ray.init(num_gpus=1, resources={"accelerator_type:A100": 1})',
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(simulated(accelerator_type='A100'))",
    ),
]

NAMES = {
    **SHARED,
    **named(
        addable_gpus, a_decision, another_policy, check_names, nested, read_environment, simulated, slices, two_gpus
    ),
    "LABELED": LABELED,
    "OF_UNKNOWN_SIZE": OF_UNKNOWN_SIZE,
    "OTHER_TPU": OTHER_TPU,
    "PROFILE": PROFILE,
    "READ_NOW": READ_NOW,
}

ELSEWHERE = {
    "because the next minor version removes": "a name that was renamed: tests/package/test_public_signatures.py",
    "install nvidia-ml-py": "a package that is missing",
    "Reserve less, or add nodes.": "the same advice as for a plan",
    "To get other nodes, select a label of their node type": (
        "an autoscaler: tests/unit/planner/test_launch_forecast.py"
    ),
    **dict.fromkeys(
        (
            "set a smaller cpus= to use all nodes",
            "set cpus=0 to use all nodes",
            "Request the same fraction, or restrict this policy",
            "Request fewer resources, or put this policy first.",
            "Put the policy for TPU slices first.",
        ),
        "the plans of several policies: tests/unit/planner/test_mixed.py, test_reasons.py and test_tpu_slices.py",
    ),
}
"""Messages with an advice that is not in the table, and what following the advice requires."""

PARTS = ("tune_policies/*.py", "tune_policies/policies", "tune_policies/values")

TABLE = AdviceTable(parts=PARTS, rows=ROWS, elsewhere=ELSEWHERE, names=NAMES)
