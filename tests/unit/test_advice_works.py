"""Each advice in a message of a policy, a plan or a run works as it is written: errors, warnings and notes."""

import io
import json
import math
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest
import ray
from ray import tune
from ray.train import ScalingConfig
from rich.console import Console

import tune_policies
from tests.advice import Row, follow, texts_with_advice, unneeded, without_row
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
    kuberay,
)
from tune_policies.cluster.cluster_view import cluster_view
from tune_policies.files.plain_data import parse_data
from tune_policies.placement.counting import Request
from tune_policies.placement.deadlock import WaitingRun
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement
from tune_policies.policies import policy
from tune_policies.policies.policy_file import load_runtime_env
from tune_policies.testing import check_policy
from tune_policies.trainers import GpuMemoryLimit, Overheads, measure_gpu_memory, with_limits
from tune_policies.trainers.gpu_memory.framework_settings import jax_variables, why_jax_is_unlimited
from tune_policies.trainers.gpu_memory.overhead import save_overheads
from tune_policies.trainers.profiling.calibration import places_of_models
from tune_policies.trainers.profiling.measure import configs_to_measure
from tune_policies.trainers.train.train_in_tune import check_workers
from tune_policies.trainers.usage.advice import Advice
from tune_policies.trainers.usage.audit_callback import audit_lines
from tune_policies.trainers.usage.gpu_memory_usage import RunUsage
from tune_policies.trainers.usage.usage_pictures import plot_usage
from tune_policies.trainers.watches import run_watch, task_watch
from tune_policies.values.value import check_names

CPUS = ClusterCapacity.of(Resources(cpus=4, memory_bytes=8 * GIB))
GPU_OF_16_GIB = GpuDevice(index=0, name="GPU", memory_bytes=16 * GIB)
ONE_GPU = ClusterCapacity(
    nodes=(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), devices=(GPU_OF_16_GIB,)),)
)
UNREAD = ClusterCapacity.of(Resources(cpus=4, gpus=1))
LABELED = NodeCapacity(node_id="a", resources=Resources(cpus=4), labels={"a": "b"})
TYPED = ClusterCapacity(
    nodes=(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), accelerator_type="A100"),)
)
LIMITED = ClusterCapacity(nodes=(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), usable_cpus=2),))
LISTED = ClusterCapacity.of(ONE_GPU.nodes[0].model_copy(update={"accelerator_type": "A100"}))
WITH_TWO_CPUS = ClusterCapacity.of(Resources(cpus=2, gpus=1))
SLICE = {"resource": "TPU", "topology": "4x4", "accelerator_type": "TPU-V6E"}


def simulated(**changes):
    node = NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), has_simulated_gpus=True, **changes)
    return ClusterCapacity(nodes=(node,))


UNKNOWN_TYPES = ClusterCapacity(nodes=CPUS.nodes, node_types=None)
GROWING = ClusterCapacity(
    nodes=CPUS.nodes, node_types=(NodeTypeCapacity(name="big", resources=Resources(cpus=8), max_nodes_to_add=2),)
)
READ_NOW = ONE_GPU.model_copy(update={"read_at": datetime(2027, 1, 1, tzinfo=UTC)})
FEW_CPUS = ClusterCapacity.of(Resources(cpus=4, gpus=1), Resources(cpus=1, gpus=1))
NO_CPUS = ClusterCapacity.of(Resources(cpus=4, gpus=1), Resources(gpus=1))
OF_UNKNOWN_SIZE = ClusterCapacity(
    nodes=(NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), accelerator_type="AMD-Instinct-MI300A"),)
)
OTHER_TPU = NodeCapacity(node_id="other", resources=Resources(cpus=8, custom={"TPU": 4}), accelerator_type="TPU-V6E")
GROWS = GpuMemoryProfile(
    measurements=[GpuMemoryMeasurement(config={"n": n}, total_bytes=n * GIB) for n in (1, 2, 4, 8)],
)
PROFILE = GpuMemoryProfile(measurements=(GpuMemoryMeasurement(config={"n": 1}, total_bytes=GIB),))


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


def printed(view):
    """Return a view as text."""
    console = Console(file=io.StringIO(), width=200)
    console.print(view)
    return console.file.getvalue()


def another_policy(name):
    """Define a policy with this name in this module, and remove it from the policies that files may contain."""
    methods = {"plan": lambda self, capacity: CpuPolicy().plan(capacity), "__module__": __name__}
    type(name, (tune_policies.ResourcePolicy,), methods)
    del policy._CLASSES[name]


def read_environment(text):
    """Read a file with a runtime environment."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "environment.yaml")
        path.write_text(text)
        return load_runtime_env(path)


def saved(given):
    """Write a policy to JSON, and read it."""
    return tune_policies.ResourcePolicy.from_dict(json.loads(given.to_json()))


def saved_in(folder):
    """Save measured overheads in a folder, which is temporary if it is relative."""
    with (
        tempfile.TemporaryDirectory() as here,
        mock.patch.dict(os.environ, TUNE_POLICIES_CACHE=f"{Path(here, folder)}"),
    ):
        save_overheads(Overheads())


def tell():
    """Do nothing, in a task."""


def audited(given):
    """Return what an audit says about a policy with which more trials would run at once."""
    return "\n".join(audit_lines(Advice(given, 4, 2)))


def nested(depth):
    """Build a policy that is nested this deeply."""
    data = {"kind": "CpuPolicy"}
    for _ in range(depth):
        data = {"kind": "CappedPolicy", "inner": data, "max_concurrent_trials": 2}
    return tune_policies.ResourcePolicy.from_dict(data)


def slot_of(policy):
    return policy.plan(CPUS).common_slot


def a_results_folder():
    trial = Path(tempfile.mkdtemp(), "train_0")
    trial.mkdir()
    (trial / "result.json").write_text("{}")
    return trial.parent


def train_fn(config):
    """Train."""


class Trainer:
    """A trainer of Ray Train."""

    def fit(self):
        """Train."""


TABLE = [
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
    Row("GpuPolicy().plan(CPUS)", "policy | CpuPolicy()", "(GpuPolicy() | CpuPolicy()).plan(CPUS)"),
    Row("GpuPolicy(gpus=2).plan(ONE_GPU)", "at most 1 GPU per trial", "GpuPolicy(gpus=1).plan(ONE_GPU)"),
    Row("CpuPolicy(cpus=8).plan(CPUS)", "at most 4 CPUs per trial", "CpuPolicy(cpus=4).plan(CPUS)"),
    Row("CpuPolicy(num_workers=9).plan(CPUS)", "Set num_workers=4", "CpuPolicy(num_workers=4).plan(CPUS)"),
    Row("CpuPolicy(memory='9GiB').plan(CPUS)", "at most 8GiB of host", "CpuPolicy(memory='8GiB').plan(CPUS)"),
    Row(
        "GpuMemoryPolicy(gpu_memory='20GiB').plan(ONE_GPU)",
        "at most 16GiB of GPU memory",
        "GpuMemoryPolicy(gpu_memory='16GiB').plan(ONE_GPU)",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(UNREAD)",
        "set their accelerator type",
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(TYPED)",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(UNREAD)",
        "or use GpuPolicy with a fraction of a GPU",
        "GpuPolicy(gpus=0.5).plan(UNREAD)",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(simulated())",
        'ray.init(resources={"accelerator_type:A100": 1})',
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(simulated(accelerator_type='A100'))",
    ),
    Row(
        "GpuPolicy(accelerator_type='A10O').plan(TYPED)",
        "Did you mean 'A100'? Omit accelerator_type",
        "GpuPolicy(accelerator_type='A100').plan(TYPED), GpuPolicy().plan(TYPED)",
    ),
    Row("GpuPolicy(min_trials=5).plan(ONE_GPU)", "Set min_trials=1", "GpuPolicy(min_trials=1).plan(ONE_GPU)"),
    Row("GpuPolicy(num_workers=(2, 1))", "Use (1, 2)", "GpuPolicy(num_workers=(1, 2))"),
    Row("CpuPolicy(custom={'x': 1}).plan(CPUS)", "Request no x", "CpuPolicy().plan(CPUS)"),
    Row(
        "AcceleratorPolicy(resource='TPU').plan(CPUS)",
        "policy | CpuPolicy()",
        "(AcceleratorPolicy(resource='TPU') | CpuPolicy()).plan(CPUS)",
    ),
    Row(
        "SelectingPolicy(CpuPolicy(), label_selector={'a': 'b'}).plan(CPUS)",
        "add a node with these labels",
        "SelectingPolicy(CpuPolicy(), label_selector={'a': 'b'}).plan(ClusterCapacity(nodes=(LABELED,)))",
    ),
    Row(
        "AcceleratorPolicy(**SLICE, amount=3, num_workers=5)",
        "Request 2 or 4",
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=4)",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB', on_unenforced_limit='warn')",
        'run(train_fn, policy, on_unenforced_limit="warn")',
        "tuner(print, GpuMemoryPolicy(gpu_memory='4GiB'), on_unenforced_limit='warn')",
    ),
    Row(
        "NodeCatalog.from_dict([{'cpus': 8, 'gpus': 1, 'accelerator_type': 'NVIDIA A100-SXM4-80GB'}])",
        "did you mean 'A100'?",
        "NodeCatalog.from_dict([{'cpus': 8, 'gpus': 1, 'accelerator_type': 'A100'}])",
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
    Row("run(print, GpuPolicy)", "Write GpuPolicy(…) instead of the class", "PolicyScheduler(GpuPolicy())"),
    Row("run(print)", "such as AutoPolicy()", "tuner(print, tune_policies.AutoPolicy())"),
    Row(
        "run(print, CpuPolicy(), resources_per_trial={'cpu': 2, 'gpu': 0.5})",
        "GpuPolicy(gpus=0.5, cpus=2)",
        "tuner(print, GpuPolicy(gpus=0.5, cpus=2))",
    ),
    Row(
        "PolicyScheduler(GpuPolicy(), falls_back=True)",
        "Use a policy such as GpuPolicy() | CpuPolicy()",
        "PolicyScheduler(GpuPolicy() | CpuPolicy(), falls_back=True)",
    ),
    Row(
        "PolicyScheduler(CpuPolicy(), PolicyScheduler(GpuPolicy()))",
        "combine the policies, such as GpuPolicy() | CpuPolicy()",
        "PolicyScheduler(GpuPolicy() | CpuPolicy())",
    ),
    Row(
        "tuner(print, CpuPolicy(), tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy())))",
        "Omit the second argument",
        "tuner(print, tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy())))",
    ),
    Row(
        "tuner(print, may_move=True, tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy())))",
        "Pass may_move to the PolicyScheduler",
        "tuner(print, tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy(), may_move=True)))",
    ),
    Row(
        "applied(PolicyScheduler(CpuPolicy(), tune.schedulers.ASHAScheduler())).__enter__()",
        "Pass a PolicyScheduler without an inner scheduler",
        "applied(PolicyScheduler(CpuPolicy()))",
    ),
    Row("GpuPolicy(custom={'TPU': 4})", "Use AcceleratorPolicy(resource='TPU')", "AcceleratorPolicy(resource='TPU')"),
    Row("GpuPolicy(custom={'GPU': 1})", "Use the field gpus", "GpuPolicy(gpus=1)"),
    Row(
        "AcceleratorPolicy(resource='TPU', amount=3)",
        "Request 2 or 4",
        "AcceleratorPolicy(resource='TPU', amount=2), AcceleratorPolicy(resource='TPU', amount=4)",
    ),
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
        "run(Trainer(), CpuPolicy())",
        "pass as_trainable(function), and set num_workers in the policy",
        "tuner(as_trainable(lambda config: Trainer()), CpuPolicy(num_workers=1))",
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
        "BenchmarkedPolicy(a_decision(), size='n', objective='cost').plan(ONE_GPU)",
        "use objective='time'",
        "BenchmarkedPolicy(a_decision(), size='n', objective='time', accept_other_hardware=True)",
    ),
    Row(
        "CpuPolicy().plan(CPUS).remote_options(reuse='x')",
        "'release'",
        "CpuPolicy().plan(CPUS).remote_options(reuse='release')",
    ),
    Row(
        "tune_policies.build_torch_trainer",
        "from tune_policies.trainers import build_torch_trainer",
        "__import__('tune_policies.trainers').trainers.build_torch_trainer",
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
        "Set memory_bytes of each device",
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
        "ReservingPolicy(CpuPolicy(), cpus=9).plan(CPUS)",
        "Reserve less, or add nodes.",
        "ReservingPolicy(CpuPolicy(), cpus=3).plan(CPUS)",
    ),
    Row(
        "check_policy(CpuPolicy(custom={'never': 1}), num_clusters=2)",
        "Pass clusters=[…] for which it has a plan",
        "check_policy(CpuPolicy(custom={'never': 1}), num_clusters=2,"
        " clusters=[ClusterCapacity.of(Resources(cpus=8, custom={'never': 2}))])",
    ),
    Row(
        "tune_policies.ClusterCapacity.of(Resources(cpus=1)) and CpuPolicy().plan()",
        "Write plan_on_cluster(CpuPolicy()) for the running cluster",
        "tune_policies.plan_on_cluster",
    ),
    Row("another_policy('CpuPolicy')", "Rename the class", "another_policy('MyOwnPolicy')"),
    Row(
        "read_environment('- a')",
        "Write fields such as working_dir and pip",
        "read_environment('{working_dir: a, pip: [b]}')",
    ),
    Row(
        "GpuMemoryPolicy(profile=GROWS).plan(ONE_GPU).slot_for({'n': 64})",
        "Remove the config, change it to need less memory",
        "GpuMemoryPolicy(profile=GROWS).plan(ONE_GPU).slot_for({'n': 1})",
    ),
    Row(
        "SelectingPolicy(AcceleratorPolicy(**SLICE, amount=4, num_workers=4), exclude_nodes=['other'])"
        ".plan(ClusterCapacity(nodes=(*slices('4x4').nodes, OTHER_TPU)))",
        "select slices by accelerator_type or topology",
        "AcceleratorPolicy(**SLICE, amount=4, num_workers=4).plan("
        "ClusterCapacity(nodes=(*slices('4x4').nodes, OTHER_TPU)))",
    ),
    Row("Request(worker=Resources())", "Set CPUs or GPUs above 0", "Request(worker=Resources(cpus=1))"),
    Row("check_names('a', name='names')", ". Use ['a']", "check_names(['a'], name='names')"),
    Row("places_of_models(CPUS.nodes)", "Add a node with a GPU and its driver.", "places_of_models(ONE_GPU.nodes)"),
    Row(
        "jax_variables(0.5, {'XLA_CLIENT_MEM_FRACTION': '0.5', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.5'})",
        "Unset XLA_PYTHON_CLIENT_MEM_FRACTION",
        "jax_variables(0.5, {'XLA_CLIENT_MEM_FRACTION': '0.5'})",
    ),
    Row(
        "why_jax_is_unlimited({'XLA_PYTHON_CLIENT_ALLOCATOR': 'platform'}, None)",
        "Unset XLA_PYTHON_CLIENT_ALLOCATOR",
        "why_jax_is_unlimited({}, None)",
    ),
    Row(
        "why_jax_is_unlimited({'TF_FORCE_UNIFIED_MEMORY': '1'}, None)",
        "Unset TF_FORCE_UNIFIED_MEMORY",
        "why_jax_is_unlimited({}, None)",
    ),
    Row("why_jax_is_unlimited({}, 'allocator:platform')", "Remove this option", "why_jax_is_unlimited({}, '')"),
    Row(
        "GpuMemoryLimit(GIB // 2).torch_fraction(16 * GIB)",
        "Plan fewer trials per GPU",
        "GpuMemoryLimit(8 * GIB).torch_fraction(16 * GIB)",
    ),
    Row(
        "configs_to_measure([], 1, 0)",
        "Pass at least one config, or a search space",
        "configs_to_measure([{'a': 1}], 1, 0), configs_to_measure({'a': tune.choice([1])}, 1, 0)",
    ),
    Row(
        "configs_to_measure([{'a': tune.choice([1])}], 1, 0)",
        "Use values, or pass one search space as configs",
        "configs_to_measure([{'a': 1}], 1, 0), configs_to_measure({'a': tune.choice([1])}, 1, 0)",
    ),
    Row(
        "measure_gpu_memory(print, [{}], capacity=CPUS)",
        "estimate_gpu_memory(model_fn, batch)",
        "__import__('tune_policies.trainers').trainers.estimate_gpu_memory",
    ),
    Row("saved_in('/dev/null/cache')", "Set TUNE_POLICIES_CACHE to another folder", "saved_in('cache')"),
    Row(
        "with_limits(CpuPolicy().plan(CPUS))(ray.remote(tell))",
        "Write @with_limits below @ray.remote",
        "ray.remote(with_limits(CpuPolicy().plan(CPUS))(tell))",
    ),
    Row(
        "run(print, CpuPolicy(), resources_per_trial=3)",
        "Write the amounts in the policy, such as GpuPolicy(gpus=0.5, cpus=2)",
        "tuner(print, GpuPolicy(gpus=0.5, cpus=2))",
    ),
    Row(
        "tasks_wait({'CPU': 2}, 9, {})",
        "plan with ReservingPolicy(policy, cpus=2)",
        "ReservingPolicy(CpuPolicy(), cpus=2).plan(CPUS)",
    ),
    Row(
        "stuck(WaitingRun(run_id='a', started_at=0))",
        "Set num_workers=1 in the policy.",
        "CpuPolicy(num_workers=1).plan(CPUS)",
    ),
    Row(
        "audited(GpuPolicy(gpus=0.5))",
        "write {kind: GpuPolicy, gpus: 0.5} to policy.yaml, and start tune-policies exec policy.yaml PROGRAM",
        "ResourcePolicy.from_dict(parse_data('{kind: GpuPolicy, gpus: 0.5}', 'policy.yaml')).plan(ONE_GPU)",
    ),
    Row("audited(GpuPolicy(gpus=0.5))", "write run(…, GpuPolicy(gpus=0.5), …)", "tuner(print, GpuPolicy(gpus=0.5))"),
    Row(
        "GpuPolicy(gpus=0.5).plan(UNREAD).explain()",
        "set cpus= to change",
        "GpuPolicy(gpus=0.5, cpus=1).plan(UNREAD).explain()",
    ),
    Row("GpuPolicy().plan(LIMITED).explain()", "with --num-cpus=2", "GpuPolicy().plan(WITH_TWO_CPUS).explain()"),
    Row(
        "GpuMemoryPolicy(gpu_memory='20GiB').plan(TYPED).explain()",
        "list each device with its memory_bytes in the capacity",
        "GpuMemoryPolicy(gpu_memory='10GiB').plan(LISTED).explain()",
    ),
    Row(
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(simulated())",
        'ray.init(num_gpus=1, resources={"accelerator_type:A100": 1})',
        "GpuMemoryPolicy(gpu_memory='4GiB').plan(simulated(accelerator_type='A100'))",
    ),
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
        "measure_gpu_memory(train_fn)",
        'measure_gpu_memory(train_fn, [{"batch_size": 32}, {"batch_size": 256}])',
        "configs_to_measure([{'batch_size': 32}, {'batch_size': 256}], 8, 0)",
    ),
    Row(
        "check_workers(ScalingConfig(num_workers=4), slot_of(CpuPolicy(num_workers=2)))",
        "Set num_workers=4 in the policy, or ScalingConfig(num_workers=2) in the trainer",
        "check_workers(ScalingConfig(num_workers=4), slot_of(CpuPolicy(num_workers=4))),"
        "check_workers(ScalingConfig(num_workers=2), slot_of(CpuPolicy(num_workers=2)))",
    ),
    Row(
        "check_workers(ScalingConfig(num_workers=1, use_gpu=True), slot_of(CpuPolicy(num_workers=1)))",
        "Write ScalingConfig(num_workers=1, use_gpu=False, resources_per_worker={'CPU': 1})",
        "check_workers(ScalingConfig(num_workers=1, use_gpu=False, resources_per_worker={'CPU': 1}), "
        "slot_of(CpuPolicy(num_workers=1)))",
    ),
    Row("load_usage(GpuPolicy())", "load_usage('RESULT_DIR')", "load_usage(a_results_folder())"),
    Row(
        "PolicyCallback().usage",
        "Pass it to a run: run(train_fn, policy, callbacks=[callback])",
        "tuner(print, CpuPolicy(), run_config=tune.RunConfig(callbacks=[PolicyCallback()]))",
    ),
    Row(
        "plot_usage(RunUsage(trials=()), Path('a.svg'))",
        "run again with callbacks=[PolicyCallback()]",
        "tuner(print, CpuPolicy(), run_config=tune.RunConfig(callbacks=[PolicyCallback()]))",
    ),
]


MORE = {"tasks_wait": task_watch._message, "stuck": run_watch._suggestion, "ray": ray}
FUNCTIONS = (
    saved,
    saved_in,
    tell,
    audited,
    Path,
    RunUsage,
    ScalingConfig,
    check_workers,
    plot_usage,
    slot_of,
    a_results_folder,
    train_fn,
    places_of_models,
    jax_variables,
    why_jax_is_unlimited,
    GpuMemoryLimit,
    configs_to_measure,
    measure_gpu_memory,
    with_limits,
    WaitingRun,
    parse_data,
    Request,
    check_names,
    kuberay.NodeCatalog,
    Trainer,
    simulated,
    a_decision,
    slices,
    printed,
    another_policy,
    read_environment,
    nested,
    cluster_view,
    check_policy,
)
NAMES = {
    **{name: getattr(tune_policies, name) for name in tune_policies.__all__},
    **{value.__name__: value for value in FUNCTIONS},
    "tune": tune,
    "tune_policies": tune_policies,
    "CPUS": CPUS,
    "ONE_GPU": ONE_GPU,
    "UNREAD": UNREAD,
    "TYPED": TYPED,
    "LABELED": LABELED,
    "STARTED": LIMITED.model_copy(update={"is_started_here": True}),
    "LIMITED": LIMITED,
    "UNKNOWN_TYPES": UNKNOWN_TYPES,
    "GROWING": GROWING,
    "READ_NOW": READ_NOW,
    "FEW_CPUS": FEW_CPUS,
    "NO_CPUS": NO_CPUS,
    "OF_UNKNOWN_SIZE": OF_UNKNOWN_SIZE,
    "PROFILE": PROFILE,
    "GIB": GIB,
    "OTHER_TPU": OTHER_TPU,
    "GROWS": GROWS,
    **MORE,
    "FOR_SLOT": {"per_worker": Resources(cpus=1), "trial": Resources(), "max_concurrent_trials": 1},
    "TrialSlot": TrialSlot,
    "LISTED": LISTED,
    "WITH_TWO_CPUS": WITH_TWO_CPUS,
    "SLICE": SLICE,
}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.mistake}: {row.advice}")
def test_an_advice_is_in_the_message_and_works(row):
    follow(row, NAMES)


ELSEWHERE = {
    "the plan needs ScalingConfig(": "another version of Ray",
    "but an earlier task started CUDA in this process": "GPUs",
    "the policy plans trials … a GPU, but the trainable reserves": "a run of Tune: tests/unit/runner/test_run_core.py",
    "the plan uses a decision based on benchmarks with": "other versions: tests/unit/runner/test_run_plan.py",
    "requires Keras 2, because it fails with Keras 3": "TensorFlow: tests/on_ray/runner/test_train_frameworks.py",
    "an RLlib learner uses at most one": "RLlib: tests/unit/runner/test_rllib.py",
    "the policy has num_workers=0": "a run of Train: tests/on_ray/runner/test_train_in_tune.py",
    "Ray Train version 1 is active": "another setting of Ray: tests/on_ray/runner/test_trainers.py",
    "the plan has num_workers=0": "Train: tests/on_ray/runner/test_oom_retry_fit.py",
    "the plan depends on the config of each run": "Train: tests/on_ray/runner/test_oom_retry_fit.py",
    "so Ray Train would retry workers that ran out of memory": "Train: tests/on_ray/runner/test_oom_retry_fit.py",
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
    **dict.fromkeys(
        ("to get these, select a label of their node type", "To get other nodes, select a label of their node type"),
        "an autoscaler: tests/unit/planner/test_launches.py",
    ),
    **dict.fromkeys(
        (
            "install nvidia-ml-py",
            "Install nvidia-ml-py",
            "the estimate requires PyTorch",
            "Install PyTorch 2.5 or later",
            "a plot requires matplotlib",
            ". Install a build of … for the …",
        ),
        "a package that is missing",
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
    "not all slots with … fit the cluster": "the same advice as for idle resources",
    "Use tuples instead of lists and sets": "a policy of a user: tests/unit/planner/test_policy_conformance.py",
    **dict.fromkeys(
        (
            "could be measured within … s. Wait until",
            "Measure again while no other process uses the GPU",
            "Omit gpus and num_workers in the policy",
            "the trial did not start within",
            "no MPS daemon responds",
            "Measure again with calibrate_gpu_overhead()",
        ),
        "a GPU: tests/on_gpu",
    ),
    **dict.fromkeys(
        (
            "Pass on_unenforced_limit",
            "Measure it again",
            "does not support a limit. Use the native allocator",
            "Unset TF_GPU_ALLOCATOR",
            "Set TF_FORCE_GPU_ALLOW_GROWTH=true instead",
            "cupy.cuda.set_allocator(",
            "CuPy cannot parse",
        ),
        "frameworks on a GPU: tests/unit/runner/test_limiters.py and tests/on_gpu/test_limits.py",
    ),
    "Set HOME or TUNE_POLICIES_CACHE": "a user without a home: tests/unit/runner/test_overheads.py",
    **dict.fromkeys(
        (
            "Rename the key in your metrics",
            "Call it in the function that run or tuner runs",
            "Use a policy with one slot type, or omit ResourceChangingScheduler",
            "Add nodes, and resume the run.",
            "Add a choice without a device to the policy",
            "Add nodes or pass a policy instead of a plan",
            "Use a policy by config, such as",
            "Request the same resources for all trials",
            "applied does not affect runs through a Ray Client",
            "Wait until these resources are released",
            "Raise max_concurrent_trials or the limit",
        ),
        "a run of Tune: tests/unit/runner/test_run_plan.py, test_own_slots.py and test_advice.py, and tests/on_ray",
    ),
    **dict.fromkeys(
        (
            "retries with the same memory failed",
            "Plan a GPU fraction for the trial.",
            "Raise max_gpus, use a GPU with more memory",
            "Add a node with more host memory",
            "Use fewer workers, add a node",
        ),
        "a trial that runs out of memory: tests/unit/runner/test_oom_retry.py",
    ),
    **dict.fromkeys(
        (
            "Omit the backend, or plan whole GPUs",
            "Plan num_workers=1, or whole GPUs",
            "Remove num_to_keep from the trainer",
            "scaling_config cannot be passed",
        ),
        "a run of Train: tests/on_ray/runner/test_trainers.py and test_train_in_tune.py",
    ),
    **dict.fromkeys(
        ("RLlib's old API stack", "RLlib supports no devices except GPUs", "Increase cpus in the policy"),
        "RLlib: tests/unit/runner/test_rllib.py",
    ),
    **dict.fromkeys(
        (
            "(a whole GPU), so use a GPU with more memory",
            "…. Write …, with … per GPU instead of …",
            "to run without retries, write",
            "Pass the results folder of a Tune or Train run",
            "Pass a folder that contains a folder for each trial",
            "start with memory=",
            "Reuse processes with reuse_actors=True",
            "To record the slot of each trial, use PolicyCallback.",
        ),
        "the results of a run: tests/unit/runner/test_usage.py and tests/package/runner/test_gpu_memory_usage.py",
    ),
    'write GpuMemoryPolicy(gpu_memory="…")': "an estimate: tests/package/profiling/test_estimate.py",
}
"""Messages with an advice that is not in the table, and what following the advice requires."""


PARTS = (
    *(f"tune_policies/{part}" for part in ("cluster", "placement", "plan", "policies", "values", "oom", "testing")),
    "trainers",
)


def test_every_message_with_an_advice_is_in_the_table_or_needs_more_than_this_process():
    texts = texts_with_advice(*PARTS)

    assert without_row(texts, TABLE, ELSEWHERE, NAMES) == []


def test_every_message_that_is_followed_elsewhere_exists():
    assert unneeded(texts_with_advice(*PARTS), ELSEWHERE) == []
