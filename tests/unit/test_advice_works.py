"""Each advice in a message works as it is written.

A row of the table contains the mistake, the advice in its message, and the code that follows the advice. The last test
finds errors with an advice that are neither in the table nor in the list of errors that other tests cover.
"""

import ast
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from ray import tune
from ray.train import ScalingConfig

import tune_policies
from tests.clusters import GIB
from tests.decisions import a_decision
from tune_policies import ClusterCapacity, GpuDevice, NodeCapacity, Resources, kuberay
from tune_policies.trainers import measure_gpu_memory
from tune_policies.trainers.profiling.measure import configs_to_measure
from tune_policies.trainers.train.train_in_tune import check_workers
from tune_policies.trainers.usage.gpu_memory_report import plot_usage
from tune_policies.trainers.usage.gpu_memory_usage import RunUsage

ROOT = Path(__file__).parents[2]
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
FOLLOWED = {
    **dict.fromkeys(
        ("with --num-cpus=2", "Start Ray with ray.init(num_cpus=2)"), ClusterCapacity.of(Resources(cpus=2, gpus=1))
    ),
    "list each device with its memory_bytes in the capacity": ONE_GPU,
}
SLICE = {"resource": "TPU", "topology": "4x4", "accelerator_type": "TPU-V6E"}


def simulated(**changes):
    node = NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=1), has_simulated_gpus=True, **changes)
    return ClusterCapacity(nodes=(node,))


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


class Row(NamedTuple):
    """A mistake as code, the advice that its message contains, and the code that follows the advice."""

    mistake: str
    advice: str
    code: str


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
        'ray.init(num_gpus=1, resources={"accelerator_type:A100": 1})',
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
    Row("GpuPolicy() or CpuPolicy()", "GpuPolicy() | CpuPolicy()", "GpuPolicy() | CpuPolicy()"),
    Row("bool(GpuPolicy())", "'policy is not None'", "GpuPolicy() is not None"),
    Row("run(print, GpuPolicy)", "Write GpuPolicy(…) instead of the class", "PolicyScheduler(GpuPolicy())"),
    Row(
        "measure_gpu_memory(train_fn)",
        'measure_gpu_memory(train_fn, [{"batch_size": 32}, {"batch_size": 256}])',
        "configs_to_measure([{'batch_size': 32}, {'batch_size': 256}], 8, 0)",
    ),
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
        "NodeType(cpus=8, gpus=1, custom={'TPU': 4})",
        "Define a node type for each kind",
        "NodeType(cpus=8, gpus=1), NodeType(cpus=8, custom={'TPU': 4})",
    ),
    Row("NodeType(cpus=8, accelerator_type='A100')", "set gpus", "NodeType(cpus=8, gpus=1, accelerator_type='A100')"),
    Row(
        "NodeType(cpus=8, custom={'TPU': 4}, accelerator_type='TPU-V6E', topology='4x4', count=3)",
        "use a multiple of 4",
        "NodeType(cpus=8, custom={'TPU': 4}, accelerator_type='TPU-V6E', topology='4x4', count=4)",
    ),
    Row(
        "NodeCatalog(nodes=())",
        "such as {count: 8, cpus: 32, gpus: 4}",
        "NodeCatalog(nodes=({'count': 8, 'cpus': 32, 'gpus': 4},))",
    ),
    Row(
        "NodeType(name='A b', cpus=1)",
        "use at most 63 lowercase letters, digits and '-'",
        "NodeType(name='a-b', cpus=1)",
    ),
    Row(
        "NodeType(cpus=1, gpus=1, device_key='gpu')",
        "use a name such as 'nvidia.com/gpu'",
        "NodeType(cpus=1, gpus=1, device_key='nvidia.com/gpu')",
    ),
    Row(
        "NodeType(cpus=1, custom={'accelerator_type:A100': 1})",
        "use accelerator_type",
        "NodeType(cpus=1, gpus=1, accelerator_type='A100')",
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


NAMES = {
    **{name: getattr(tune_policies, name) for name in tune_policies.__all__},
    **{value.__name__: value for value in (kuberay.NodeCatalog, kuberay.NodeType, Trainer, simulated, a_decision)},
    **{value.__name__: value for value in (check_workers, plot_usage, slot_of, a_results_folder)},
    **{value.__name__: value for value in (Path, RunUsage, ScalingConfig)},
    "tune": tune,
    "train_fn": train_fn,
    "measure_gpu_memory": measure_gpu_memory,
    "configs_to_measure": configs_to_measure,
    "tune_policies": tune_policies,
    "CPUS": CPUS,
    "ONE_GPU": ONE_GPU,
    "UNREAD": UNREAD,
    "TYPED": TYPED,
    "LABELED": LABELED,
    "LIMITED": LIMITED,
    "STARTED": LIMITED.model_copy(update={"is_started_here": True}),
    "SLICE": SLICE,
}


def evaluate(code):
    return eval(code, dict(NAMES))  # the code is written above


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.mistake}: {row.advice}")
def test_an_advice_is_in_the_message_and_works(row):
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of several types
        evaluate(row.mistake)

    assert row.advice in str(caught.value)
    evaluate(row.code)


@pytest.mark.parametrize(
    ("policy", "capacity", "advice", "code", "expected"),
    [
        ("GpuPolicy(gpus=0.5)", "UNREAD", "set cpus= to change", "GpuPolicy(gpus=0.5, cpus=1)", "1 CPU, 0.5 GPU"),
        ("GpuPolicy()", "LIMITED", "with --num-cpus=2", "GpuPolicy()", "2 CPUs, 1 GPU"),
        ("GpuPolicy()", "STARTED", "Start Ray with ray.init(num_cpus=2)", "GpuPolicy()", "2 CPUs, 1 GPU"),
        (
            "GpuMemoryPolicy(gpu_memory='20GiB')",
            "TYPED",
            "list each device with its memory_bytes in the capacity",
            "GpuMemoryPolicy(gpu_memory='10GiB')",
            "4 CPUs, 1 GPU, 16 GiB",
        ),
        (
            "GpuMemoryPolicy(gpu_memory='20GiB')",
            "TYPED",
            "with gpu_memory: 20268MiB (1.0% less), 2 trials instead of 1 would fit on a GPU of 39.6 GiB",
            "GpuMemoryPolicy(gpu_memory='20268MiB')",
            "2 CPUs, 0.5 GPU, 19.8 GiB",
        ),
    ],
    ids=["the CPUs of a trial", "the CPUs of a node", "the CPUs in ray.init", "the memory of a type", "one more trial"],
)
def test_an_advice_of_a_plan_works(policy, capacity, advice, code, expected):
    """After the advice, the nodes are those of ``FOLLOWED``."""
    noted = evaluate(policy).plan(evaluate(capacity)).explain()

    followed = evaluate(code).plan(FOLLOWED.get(advice, evaluate(capacity))).explain()

    assert advice in noted
    assert advice not in followed
    assert f"each trial: {expected}" in followed


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
    **dict.fromkeys(
        ("model_fn must be", "batch is", "batch must be", "optimizer must", "loss_fn must", "is a model. Pass"),
        "PyTorch: tests/package/profiling/test_estimate.py",
    ),
    "is not a trainable:": "the message of Ray: tests/package/profiling/test_configs_to_measure.py",
    "the plan depends on the config of each run": "Train: tests/on_ray/runner/test_oom_retry_fit.py",
    "so Ray Train would retry workers that ran out of memory": "Train: tests/on_ray/runner/test_oom_retry_fit.py",
}
"""Errors with an advice that is not in the table, and what following the advice requires."""


def advice_in_code():
    """Yield the text of each raised error whose last sentence contains an advice, with ``…`` for inserted values."""
    parts = ("cluster", "placement", "plan", "policies", "values")
    for folder in (*(ROOT / "tune_policies" / part for part in parts), ROOT / "trainers"):
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                text = max(texts_in(node), key=len, default="") if isinstance(node, ast.Raise) else ""
                found = ADVICE.search(text)
                if found and re.search(r"[(='\"`]", text[found.start() :]):
                    yield text


def texts_in(node):
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "…" for value in part.values)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


ADVICE = re.compile(r"[.:;,] (?:or )?(?:Pass|Use|Set|Write|Add|Install|Choose|Omit|Run|Call|pass|use|set|write|run) ")


def message_of(row):
    try:
        evaluate(row.mistake)
    except Exception as error:  # noqa: BLE001  # of several types
        return str(error)
    return ""


def test_every_error_with_an_advice_is_in_the_table_or_needs_more_than_this_process():
    messages = [message_of(row) for row in TABLE]

    missing = [
        text
        for text in advice_in_code()
        if not any(part in text for part in ELSEWHERE) and not any(is_of(text, message) for message in messages)
    ]

    assert missing == []


def is_of(template, message):
    """Return whether ``message`` may have been built from ``template``."""
    return re.search(".*?".join(map(re.escape, template.split("…"))), message, re.DOTALL) is not None
