"""Each advice in a message of a command, a file, the doctor, a probe or a benchmark works as it is written."""

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tests.advice import ROOT, Row, follow, outdated, texts_with_advice, without_row
from tests.clusters import GIB, gpu_node
from tests.measured_runs import a_run
from tests.run_sets import a_run_set
from tests.unit.kuberay.planted.sound import CLUSTER, LAUNCHER
from tune_policies import ClusterCapacity, CpuPolicy, ReservingPolicy
from tune_policies.benchmarks.cli.run import _sizes
from tune_policies.benchmarks.compare.doubts import control_problem, problems_of_readings
from tune_policies.benchmarks.compare.time_ratio import compare_times
from tune_policies.benchmarks.decide.device_decision import Terms, decide
from tune_policies.benchmarks.decide.prices import Instance, Prices
from tune_policies.benchmarks.measuring.colocation import parse_device, parse_devices
from tune_policies.benchmarks.measuring.interleaving import check_same, settings_of
from tune_policies.benchmarks.measuring.packing import find_training
from tune_policies.benchmarks.measuring.rounds import disagreements
from tune_policies.benchmarks.measuring.timed_workload import has_used_gpu
from tune_policies.benchmarks.record.packing_record import ThroughputRecord
from tune_policies.benchmarks.record.run_set import Configuration, Environment, NoiseReading, Phase, Settings
from tune_policies.benchmarks.record.run_set_file import file_text, read_run_set, write_run_set
from tune_policies.benchmarks.workloads.registry import check_needs, find_workload, load_workload
from tune_policies.benchmarks.workloads.steps import Steps, checked_loss, checked_steps, torch_device
from tune_policies.cli.main import app
from tune_policies.files.plain_data import parse_data, parse_json
from tune_policies.files.reading import read_bytes
from tune_policies.files.svg import Picture
from tune_policies.files.writing import locked
from tune_policies.files.yaml_documents import read_documents
from tune_policies.placement.deadlock import Reservation, WaitingRun
from tune_policies.probe.doctor.node_checks import Framework, Gpu, NodeFacts, RayCounts, diagnose
from tune_policies.probe.holders import _nested_error
from tune_policies.probe.node_types import addable_node_types, addable_nodes, load_cluster_config
from tune_policies.ray_compat.connection import find_ray
from tune_policies.values.resources import ray_ticks

A10G = ClusterCapacity.of(gpu_node("a", gpus=2, cpus=16, gpu_memory_gib=16, accelerator_type="A10G"))
PRICES = "{date: 2026-05-01, currency: USD, cpu: 0.05, gpus: {A10G: 0.4}}"
ON_A10G = Prices(
    date="2026-11-01",
    currency="USD",
    instances=(Instance(name="g", price=1, cpus=8, gpus=1, accelerator_type="A10G"),),
)
FILES = {
    "gpu.yaml": "kind: GpuPolicy\n",
    "cpu.yaml": "kind: CpuPolicy\n",
    "cluster.json": A10G.to_json(),
    "catalog.yaml": "- {name: a, count: 2, cpus: 8, gpus: 1, memory: 32GiB, accelerator_type: A100}\n",
    "prices.yaml": PRICES,
    "listed.yaml": ON_A10G.model_copy(update={"cpu": 0.1}).to_json(),
    "priced.yaml": "- {count: 2, cpus: 8, gpus: 2, memory: 32GiB, accelerator_type: L4, price_per_hour: 2}\n",
    "raycluster.yaml": CLUSTER,
    "launcher.yaml": LAUNCHER,
    "measured.json": file_text(a_run()),
    "on-cpus.json": file_text(a_run(("cpu",))),
    "run.json": file_text(a_run_set(workloads=("mlp",), sizes=(16, 1024), num_rounds=3, has_failure=False)),
    "old.txt": "mine\n",
    "tune.py": "print('done')\n",
    "mine.py": "def net(size, device): ...\n",
}


class CommandError(Exception):
    """The command failed with this output."""


@contextlib.contextmanager
def folder(**files):
    """Enter a folder with the files of ``FILES`` and with ``files``, whose names contain ``_`` instead of a dot."""
    given = {file.replace("_", "."): text for file, text in files.items()}
    path = [*sys.path]
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        for file, text in (FILES | given).items():
            Path(file).write_text(text)
        try:
            yield
        finally:
            sys.path[:] = path
            sys.modules.pop("mine", None)


def command(line, **files):
    """Run a command of this package in a folder with files, and return its output, or raise an error with it."""
    with folder(**files):
        done = CliRunner().invoke(app, shlex.split(line), env={"COLUMNS": "300"})
    said = " ".join(done.output.split())
    if done.exit_code:
        raise CommandError(said)
    return said


def program(line):
    """Run a command in a process of its own, because ``exec`` changes the process, and return its output."""
    with folder():
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:."}
        line = [sys.executable, "-m", "tune_policies", *shlex.split(line)]
        return subprocess.run(line, env=environment, check=True, capture_output=True, text=True).stderr


def in_folder(action, **files):
    """Call ``action`` in a folder with files."""
    with folder(**files):
        return action()


def gpu(index=0, **changes):
    fields = {"name": "NVIDIA A100-SXM4-80GB", "memory_bytes": 80 * GIB, "used_bytes": 0}
    return Gpu(index=index, uuid=f"GPU-{index}a", **fields | changes)


def counts(**changes):
    fields = {"cpus": 8, "gpus": 2, "gpus_in_use": 0, "accelerator_type": "A100", "object_store_bytes": GIB}
    return RayCounts(**fields | changes)


def torch(version="2.13.0", cuda="12.8"):
    return (Framework(name="torch", version=version, cuda=cuda),)


def node(name="a", **changes):
    """Return a healthy node with two GPUs, with ``changes`` to its fields."""
    fields = {
        "ray": counts(),
        "frameworks": torch(),
        "driver_version": "570.86.15",
        "cuda_version": "12.8",
        "gpus": (gpu(0), gpu(1)),
        "num_nvidia_on_pci": 2,
        "cpu_limits": {"CPU affinity": 8},
        "memory_bytes": 64 * GIB,
        "shm_bytes": 20 * GIB,
    }
    return NodeFacts(name=name, **fields | changes)


def without_driver(**changes):
    return node(**{"driver_version": None, "cuda_version": None, "gpus": None, "nvml_error": "Not Loaded"} | changes)


def doctor(*found):
    """Return the findings of the doctor with their hints."""
    return "\n".join(f"{finding.what}: {finding.hint}" for finding in diagnose(found))


def compared(*first, against=(2.0,) * 5):
    """Compare the times of rounds, and return the reasons for doubts."""
    rounds = [
        dict(enumerate(((time,) if isinstance(time, float) else time) for time in side)) for side in (first, against)
    ]
    return "\n".join(compare_times(*rounds).reasons)


def noise(**reading):
    return "\n".join(problems_of_readings([NoiseReading(round=0, **{"load": 0.0} | reading)], num_cpus=8))


def equal(control):
    """Return the doubt about a run whose control took ``control`` times as long."""
    run = a_run_set(workloads=("mlp",), sizes=(16,), spread=0.0001, has_failure=False)
    first = Configuration(workload="mlp", size=16, device="cpu")
    runs = [
        process.model_copy(
            update={
                "blocks": tuple(
                    block.model_copy(update={"seconds": block.seconds * control}) for block in process.blocks
                )
            }
        )
        if process.configuration.is_control
        else process
        for process in run.runs
    ]
    changed = run.model_copy(update={"runs": tuple(runs)})
    return control_problem(changed, first, Phase.COMPUTE, 0.05) or ""


def with_losses(*losses, **changes):
    """Return the failures of two processes. The second process has these losses."""
    one, other = a_run(("cpu", "gpu"), sizes=(1,), rounds=1).runs
    runs = (
        one.model_copy(update={"losses": (1.0, 0.5)} | changes),
        other.model_copy(update={"losses": losses} | changes),
    )
    return "\n".join(failure.message for failure in disagreements(runs))


def amd(**variables):
    """Return a node with two GPUs of AMD and these environment variables."""
    ray = counts(accelerator_type="AMD-Instinct-MI300X-OAM")
    return without_driver(ray=ray, has_amd_driver=True, num_nvidia_on_pci=0, device_variables=variables)


def grown(**node_type):
    """Return the configuration of a cluster with one node type."""
    return {
        "max_workers": 2,
        "head_node_type": "head",
        "available_node_types": {"worker": {"max_workers": 2} | node_type},
    }


def sizes(workloads, given):
    """Return the sizes that ``bench run`` measures."""
    return in_folder(lambda: _sizes(workloads, given, quick=False))


def run_of(**changes):
    """Return the problems of a run with these changes."""
    return "\n".join(a_run(**changes).problems())


def short():
    """Return a run in which the CPU and the GPU finished different sizes."""
    return a_run().model_copy(update={"runs": a_run(("cpu",), sizes=(1,)).runs + a_run(("gpu",), sizes=(16,)).runs})


def doubtful():
    """Return a run in which the GPU is faster in some rounds and slower in others."""
    runs = []
    for process in a_run(sizes=(1,)).runs:
        is_slow = process.configuration.device == "gpu" and process.round % 2
        runs.append(process.model_copy(update={"first_epoch_s": 9.0 if is_slow else 3.0}))
    return a_run().model_copy(update={"runs": tuple(runs)})


def raised(error):
    raise error


def waiting(**amounts):
    """Return a placement group that waits for these resources."""
    return SimpleNamespace(bundles=[SimpleNamespace(resources=amounts)])


def reservation(**amounts):
    return Reservation(node_id="a", amounts=ray_ticks(amounts), holder="a trial")


def waiting_run(**amounts):
    return WaitingRun(run_id="b", started_at=0, driver=(reservation(**amounts),))


def packed_on(name):
    return ThroughputRecord(gpu=name, machine="", command="", plans={}, samples=[])


def step():
    return 1.0


def lock(*names):
    """Lock files one within the other."""
    with folder(), contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(locked(Path(name)))


OWN_WORKLOAD = """\
from tune_policies.benchmarks.workloads.steps import Steps

def net(size, device): return Steps(with_transfers=step)
def step(): return 1.0
"""
SETTINGS = Settings(sizes={"mlp": (16,)}, devices=("cpu",))
TERMS = Terms(steps_per_trial=1000)
FILES["doubtful.json"] = file_text(doubtful())
FUNCTIONS = (
    CommandError,
    Path,
    command,
    program,
    in_folder,
    gpu,
    counts,
    torch,
    node,
    without_driver,
    amd,
    doctor,
    compared,
    noise,
    run_of,
    short,
    raised,
    waiting,
    reservation,
    waiting_run,
    equal,
    with_losses,
    grown,
    sizes,
    packed_on,
    step,
    lock,
    a_run,
    read_bytes,
    parse_data,
    parse_json,
    read_documents,
    Picture,
    read_run_set,
    write_run_set,
    _nested_error,
    ReservingPolicy,
    CpuPolicy,
    Framework,
    addable_node_types,
    addable_nodes,
    load_cluster_config,
    find_ray,
    parse_device,
    parse_devices,
    check_same,
    settings_of,
    find_training,
    has_used_gpu,
    check_needs,
    find_workload,
    load_workload,
    Steps,
    checked_loss,
    checked_steps,
    torch_device,
    decide,
    Instance,
    Prices,
)
NAMES = {
    **{value.__name__: value for value in FUNCTIONS},
    "ENVIRONMENT": Environment(cpu_model="another CPU", num_cpus=2),
    "NOW": '"schema_version":1',
    "NEXT": '"schema_version":2',
    "GIB": GIB,
    "FILES": FILES,
    "OWN_WORKLOAD": OWN_WORKLOAD,
    "A10G": A10G,
    "TERMS": TERMS,
    "SETTINGS": SETTINGS,
    "ON_A10G": ON_A10G,
}

FILE_ROWS = [
    Row("in_folder(lambda: read_bytes('.'))", "Choose a file in it", "in_folder(lambda: read_bytes('./gpu.yaml'))"),
    Row("read_bytes('/dev/null')", "Save its content in a regular file", "in_folder(lambda: read_bytes('gpu.yaml'))"),
    Row(
        "in_folder(lambda: (Path('gpu.yaml').chmod(0o666), read_bytes('gpu.yaml', by_others=False)))",
        "Delete the file, or run `chmod go-w` on it",
        "in_folder(lambda: (Path('gpu.yaml').chmod(0o644), read_bytes('gpu.yaml', by_others=False)))",
    ),
    Row(
        "in_folder(lambda: read_bytes('old.txt', max_bytes=2))",
        "it has more than 2 bytes. Remove unneeded parts",
        "in_folder(lambda: read_bytes('old.txt', max_bytes=2), old_txt='m')",
    ),
    Row("parse_data('a: 1\\n---\\nb: 2', '')", "Split the file", "parse_data('a: 1', ''), parse_data('b: 2', '')"),
    Row("parse_data('a: 1\\na: 1', '')", "Keep only one of the keys", "parse_data('a: 1', '')"),
    Row('parse_json(\'{"a": 1, "a": 2}\')', "Keep only one of the keys", "parse_json('{\"a\": 1}')"),
    Row("read_documents('a: 1\\na: 2', '')", "Keep only one of the keys", "read_documents('a: 1', '')"),
    Row("parse_json('[1, 2, 3]', max_parts=2)", "Remove unneeded parts", "parse_json('[1, 2]', max_parts=2)"),
    Row(
        "parse_json('{' + ', '.join(f'\"{key}\": 1' for key in range(100_001)) + '}')",
        "Remove unneeded keys",
        "parse_json('{' + ', '.join(f'\"{key}\": 1' for key in range(100_000)) + '}')",
    ),
    Row(
        "read_documents('a: 1 # ' + 'x' * 10_000_000, '')",
        "characters. Remove unneeded parts",
        "read_documents('a: 1', '')",
    ),
    Row("read_documents('--- 1\\n' * 20_000, '')", "Remove unneeded documents", "read_documents('--- 1\\n' * 9, '')"),
    Row("read_documents('a: !x 1', '')", "is not supported. Remove it", "read_documents('a: 1', '')"),
    Row("read_documents('a: !x [1]', '')", "is not supported. Remove it", "read_documents('a: [1]', '')"),
    Row("read_documents('a:\\n\\tb: 1', '')", "Use spaces", "read_documents('a:\\n  b: 1', '')"),
    Row(
        "read_documents('{{ .Values }}: 1', '')",
        "for a Helm chart, use the output of `helm template`",
        "read_documents('values: 1', '')",
    ),
    Row(
        "read_documents('a: b: {{ .c }}', '')",
        "Use the output of `helm template`",
        "read_documents('a: 1', '')",
    ),
    Row(
        "in_folder(lambda: Picture('<svg/>').save('plan.png'))",
        "Choose a name that ends in .svg",
        "in_folder(lambda: Picture('<svg/>').save('plan.svg'))",
    ),
    Row("lock('old.txt', 'old.txt')", "or choose another file", "lock('old.txt', 'new.txt')"),
    Row(
        "command('plan listed.yaml --cluster cluster.json')",
        "is a price file, not a policy. Pass it as --prices to `bench decide`",
        "command('bench decide measured.json --steps-per-trial 1000 --cluster cluster.json --prices listed.yaml')",
    ),
    Row(
        "command('plan cluster.json --cluster cluster.json')",
        "Pass it as --cluster to `plan` or `bench decide`",
        "command('plan gpu.yaml --cluster cluster.json'),"
        "command('bench decide measured.json --steps-per-trial 1000 --cluster cluster.json')",
    ),
    Row(
        "command('plan catalog.yaml --cluster cluster.json')",
        "--nodes to `plan`, `bench decide` or `kuberay design`",
        "command('kuberay design gpu.yaml --num-trials 2 --nodes catalog.yaml')",
    ),
    Row(
        "command('plan raycluster.yaml --cluster cluster.json')",
        "or as the argument of `kuberay lint`",
        "command('kuberay lint raycluster.yaml')",
    ),
    Row(
        "command('bench decide gpu.yaml --steps-per-trial 9 --cluster gpu.yaml')",
        "Write a run set with `tune-policies bench run … --output FILE`",
        "command('bench decide measured.json --steps-per-trial 1000 --cluster cluster.json')",
    ),
    Row(
        "command('plan gpu.yaml --cluster gpu.yaml')",
        "Pass it as the argument of `plan` or `kuberay design`",
        "command('plan gpu.yaml --cluster cluster.json'),"
        "command('kuberay design gpu.yaml --num-trials 2 --nodes catalog.yaml')",
    ),
]

COMMAND_ROWS = [
    Row(
        "command('plan gpu.yaml cpu.yaml --cluster cluster.json --plot plan.svg')",
        "Pass one policy",
        "command('plan gpu.yaml --cluster cluster.json --plot plan.svg')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --plot cluster.json')",
        "Choose another output file",
        "command('plan gpu.yaml --cluster cluster.json --plot plan.svg')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --plot old.svg', old_svg='<svg/>')",
        "Choose another file, or pass --force to replace it",
        "command('plan gpu.yaml --cluster cluster.json --plot new.svg', old_svg='<svg/>'),"
        "command('plan gpu.yaml --cluster cluster.json --plot old.svg --force', old_svg='<svg/>')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --plot no/plan.svg')",
        "Choose a file in an existing folder that is writable",
        "command('plan gpu.yaml --cluster cluster.json --plot ./plan.svg')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --plot old.svg --force', old_svg='mine')",
        "Choose another file, or delete old.svg",
        "command('plan gpu.yaml --cluster cluster.json --plot new.svg --force', old_svg='mine'),"
        "command('plan gpu.yaml --cluster cluster.json --plot old.svg --force')",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --address 127.0.0.1:1')",
        "Omit --address or --cluster",
        "command('plan gpu.yaml --cluster cluster.json')",
    ),
    Row(
        "command('plan gpu.yaml --name trials')",
        "--name requires a cluster file. Pass the file with --cluster",
        "command('plan gpu.yaml --name trials --cluster raycluster.yaml')",
    ),
    Row(
        "command('plan gpu.yaml --cluster catalog.yaml --nodes priced.yaml')",
        "Add price_per_hour to the nodes in catalog.yaml",
        "command('plan gpu.yaml --cluster catalog.yaml', catalog_yaml=FILES['priced.yaml'])",
    ),
    Row(
        "command('plan gpu.yaml --cluster cluster.json --nodes priced.yaml')",
        "Omit --nodes",
        "command('plan gpu.yaml --cluster cluster.json')",
    ),
    Row(
        "command('kuberay design gpu.yaml cpu.yaml --num-trials 2 --nodes catalog.yaml --output a.yaml')",
        "Pass one policy",
        "command('kuberay design gpu.yaml --num-trials 2 --nodes catalog.yaml --output a.yaml')",
    ),
    Row("command('exec gpu.yaml')", "Pass a Python script, or -m and a module", "program('exec gpu.yaml tune.py')"),
    Row(
        "command('exec gpu.yaml tnue.py')",
        "Pass a Python script, or -m and a module",
        "program('exec gpu.yaml -m tune')",
    ),
]

DOCTOR_ROWS = [
    Row("doctor(node(failure='no answer within 1 s'))", "or increase --timeout-s", "doctor(node())"),
    Row("doctor(without_driver())", "install the driver so that `nvidia-smi` works on the node", "doctor(node())"),
    Row(
        "doctor(without_driver(num_nvidia_on_pci=0))",
        "start Ray on the node without --num-gpus; if the node has GPUs, install the driver",
        "doctor(without_driver(num_nvidia_on_pci=0, ray=counts(gpus=0)))",
    ),
    Row("doctor(without_driver(ray=None))", "to use these GPUs, install the driver", "doctor(node(ray=None))"),
    Row(
        "doctor(node(gpus=()))",
        "start Ray on the node without --num-gpus, or start the container with GPUs",
        "doctor(node(gpus=(), ray=counts(gpus=0))), doctor(node())",
    ),
    Row(
        "doctor(node(visible_devices='1', ray=None))",
        "unset CUDA_VISIBLE_DEVICES before Ray starts on the node",
        "doctor(node(ray=None))",
    ),
    Row(
        "doctor(node(ray=counts(gpus=4)))",
        "start Ray on the node without --num-gpus, or with --num-gpus=2",
        "doctor(node(ray=counts(gpus=2)))",
    ),
    Row(
        "doctor(node(ray=counts(gpus=1)))",
        "if Ray may use the other GPUs, start Ray on the node without --num-gpus",
        "doctor(node(ray=counts(gpus=2)))",
    ),
    Row(
        "doctor(amd(ROCR_VISIBLE_DEVICES='0'))",
        "run `export HIP_VISIBLE_DEVICES=…` with the devices, and `unset ROCR_VISIBLE_DEVICES`",
        "doctor(amd(HIP_VISIBLE_DEVICES='0'))",
    ),
    Row(
        "doctor(amd(ROCR_VISIBLE_DEVICES='0', HIP_VISIBLE_DEVICES='1'))",
        "before Ray starts on the node, run `unset ROCR_VISIBLE_DEVICES`",
        "doctor(amd(HIP_VISIBLE_DEVICES='1'))",
    ),
    Row(
        "doctor(node(frameworks=torch('2.13.0+cpu', None)))",
        "install a build for the node's GPUs",
        "doctor(node(frameworks=torch('2.13.0+cu128')))",
    ),
    Row(
        "doctor(node(frameworks=(Framework(name='tensorflow', version='2.21.0', cuda='12.5', missing='cuDNN'),)))",
        "run pip install 'tensorflow[and-cuda]'",
        "doctor(node(frameworks=(Framework(name='tensorflow', version='2.21.0', cuda='12.5'),)))",
    ),
    Row(
        "doctor(node(frameworks=(Framework(name='jax', version='0.9.0', missing='its CUDA plugin'),)))",
        "run pip install 'jax[cuda13]'",
        "doctor(node(frameworks=(Framework(name='jax', version='0.9.0', cuda='12.9'),)))",
    ),
    Row(
        "doctor(node(driver_version='470.82.01', cuda_version='11.4'))",
        "update the driver, or install a torch build for CUDA 11.4 or older",
        "doctor(node()),"
        "doctor(node(driver_version='470.82.01', cuda_version='11.4', frameworks=torch('2.0.1+cu113', '11.3')))",
    ),
    Row(
        "doctor(node(gpus=(gpu(0), gpu(1, is_mig=True))))",
        "set CUDA_VISIBLE_DEVICES to the MIG devices",
        "doctor(node(gpus=(gpu(0), gpu(1, is_mig=True)), visible_devices='MIG-1')), doctor(node())",
    ),
    Row(
        "doctor(node(gpus=(gpu(0), gpu(1, used_bytes=20 * GIB))))",
        "stop them, or hide these GPUs from Ray with CUDA_VISIBLE_DEVICES",
        "doctor(node())",
    ),
    Row(
        "doctor(node(cpu_limits={'cgroup': 2.5}))",
        "start Ray on the node with `ray start --num-cpus=2` or ray.init(num_cpus=2), or raise the limit",
        "doctor(node(cpu_limits={'cgroup': 2.5}, ray=counts(cpus=2))), doctor(node(cpu_limits={'cgroup': 8}))",
    ),
    Row(
        "doctor(node(ray=counts(accelerator_type=None)))",
        """start Ray on the node with --resources='{"accelerator_type:A100": 1}'""",
        "doctor(node(ray=counts(accelerator_type='A100')))",
    ),
    Row(
        "doctor(node(shm_bytes=GIB // 2))",
        "enlarge /dev/shm (for a container, with --shm-size), or start Ray with a smaller --object-store-memory",
        "doctor(node(shm_bytes=GIB)), doctor(node(shm_bytes=GIB // 2, ray=counts(object_store_bytes=GIB // 2)))",
    ),
    Row(
        "doctor(node('a', versions={'ray': '2.60.0'}), node('b', versions={'ray': '2.59.0'}))",
        "install the same version on all nodes",
        "doctor(node('a', versions={'ray': '2.60.0'}), node('b', versions={'ray': '2.60.0'}))",
    ),
]

PROBE_ROWS = [
    Row(
        "raised(_nested_error(waiting(CPU=2), (reservation(CPU=1),), (waiting_run(CPU=1),)))",
        "use ReservingPolicy(policy, cpus=2) in the outer run",
        "ReservingPolicy(CpuPolicy(), cpus=2)",
    ),
    Row(
        "addable_nodes({'available_node_types': {}}, 0, source='a')",
        "Set the maximum number of worker nodes",
        "addable_nodes({'max_workers': 2}, 0, source='a')",
    ),
    Row(
        "addable_nodes([], 0, source='a')",
        "Pass a Ray cluster YAML with available_node_types and max_workers, or a KubeRay RayCluster",
        "in_folder(lambda: [load_cluster_config(file) for file in ('launcher.yaml', 'raycluster.yaml')])",
    ),
    Row(
        "addable_node_types(grown(), {}, source='a')",
        "Write the resources of a node",
        "addable_node_types(grown(resources={'CPU': 4}), {}, source='a')",
    ),
    Row("find_ray('')", "or omit the address", "find_ray(None), find_ray('host:1'), find_ray('ray://host:1')"),
    Row(
        "find_ray('http://host:8265')",
        "use host:port or ray://host:10001",
        "find_ray('host:6379'), find_ray('ray://host:10001')",
    ),
]

BENCHMARK_ROWS = [
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --node-cpus 8')",
        "Pass the number of trials of the run too, or omit --node-cpus",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --node-cpus 8 --num-trials 9'),"
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json')",
    ),
    Row(
        "command('bench plot measured.json --output a.svg --phase compute')",
        "Choose another --phase",
        "command('bench plot measured.json --output a.svg --phase with-transfers')",
    ),
    Row(
        "command('bench run --resume run.json --rounds 9')",
        "Omit --rounds",
        "command('bench run --resume run.json')",
    ),
    Row(
        "command('bench run --resume run.json')",
        "`tune-policies bench export run.json --format json --redact --output redacted.json` omits both",
        "command('bench export run.json --format json --redact --output redacted.json')",
    ),
    Row("command('bench run')", "pass your own as module:function", "in_folder(lambda: load_workload('mine:net'))"),
    Row("command('bench run affine@64 --size 16')", "Omit --size", "sizes(['affine@64'], [])"),
    Row("command('bench run mine:net')", "such as --size 64 --size 256", "sizes(['mine:net'], [64, 256])"),
    Row("command('bench run mlp@64,big')", "such as mlp@64,256", "sizes(['mlp@64,256'], [])"),
    Row("command('bench run mpl')", "did you mean 'mlp'?", "sizes(['mlp'], [])"),
    Row(
        "command('bench run affine --output old.txt')",
        "Choose another file, or continue the run with --resume old.txt",
        "command('bench run --resume old.txt', old_txt=FILES['run.json'])",
    ),
    Row(
        "command('bench packing tf-mlp')",
        "such as tune-policies bench packing tf-mlp@64 --steps 1000",
        "find_training('tf-mlp', 64, 1000)",
    ),
    Row("parse_device('cpu@2')", "Write cpu, and set the CPUs of a trial with --cpus", "parse_device('cpu')"),
    Row("parse_device('gpu@x')", "a number above 0, such as 0.25", "parse_device('gpu@0.25')"),
    Row("parse_devices([])", "Write --device cpu --device gpu", "parse_devices(['cpu', 'gpu'])"),
    Row("settings_of(a_run())", "Start a new run", "settings_of(a_run(settings=SETTINGS))"),
    Row(
        "check_same(a_run(), a_run(environment=ENVIRONMENT))",
        "Continue it on the same machine",
        "check_same(a_run(), a_run())",
    ),
    Row(
        "has_used_gpu({}, ('torch',))",
        "Get the device from torch_device(device)",
        "torch_device('cpu')",
    ),
    Row(
        "with_losses(1.0, 9.0)", "or set Steps.tolerance", "with_losses(1.0, 0.7, tolerance=0.5), with_losses(1.0, 0.5)"
    ),
    Row(
        "checked_steps(None, 'mine:net')",
        "must return Steps(with_transfers=…). Import Steps from tune_policies.benchmarks.workloads.steps",
        "checked_steps(Steps(with_transfers=step), 'mine:net')",
    ),
    Row(
        "in_folder(lambda: load_workload('mine:net'), mine_py='def net(config): ...')",
        "Write def net(size, device): return Steps(with_transfers=step), where step is a function without arguments",
        "in_folder(lambda: checked_steps(load_workload('mine:net')(1, 'cpu'), 'mine:net'), mine_py=OWN_WORKLOAD)",
    ),
    Row(
        "checked_steps(Steps(with_transfers=lambda config: 1.0), 'mine:net')",
        "Write a function without arguments inside the workload",
        "checked_steps(Steps(with_transfers=step), 'mine:net')",
    ),
    Row(
        "checked_loss(float('nan'), 'mine:net', 1)",
        "Lower the learning rate, or check the data",
        "checked_loss(1.0, 'mine:net', 1)",
    ),
    Row("compared(1.0, against=())", "Measure both configurations", "compared(*(1.0,) * 5)"),
    Row("compared(0.0, 0.0, 0.0)", "If the file was edited, measure again", "compared(1.0, 1.0, 1.0)"),
    Row("compared(1.0, against=(2.0,))", "Run 3 or more rounds", "compared(1.0, 1.0, 1.0, against=(2.0,) * 3)"),
    Row(
        "compared(1.0, 1.2, 1.4, 1.6, 1.8)",
        "Measure more rounds",
        "compared(*(1.0, 1.2, 1.4, 1.2, 1.0) * 2, against=(2.0,) * 10)",
    ),
    Row(
        "compared(*(1.9, 2.2) * 4, against=(2.0,) * 8)",
        "the range that counts as equal. Run more rounds to narrow the interval",
        "compared(*(1.9, 2.2) * 60, against=(2.0,) * 120)",
    ),
    Row(
        "compared(2.2, 2.6, 2.2, 2.5, 2.3)",
        "Run more rounds to narrow the interval",
        "compared(*(2.2, 2.6, 2.2, 2.5, 2.3) * 4, against=(2.0,) * 20)",
    ),
    Row(
        "compared(*((1.1, 3.9),) * 4)",
        "Run more rounds, or measure on an idle machine",
        "compared(*((2.49, 2.51),) * 4)",
    ),
    Row(
        "run_of(is_complete=False)",
        "run: tune-policies bench run --resume FILE",
        "run_of(is_complete=True)",
    ),
    Row(
        "in_folder(lambda: read_run_set(Path('run.json')), run_json=FILES['run.json'].replace(NOW, NEXT))",
        "Upgrade tune-policies",
        "in_folder(lambda: read_run_set(Path('run.json')))",
    ),
    Row(
        "check_needs(find_workload('boosting')._replace(needs=('xgboost_of_nobody',)))",
        "or omit the workload",
        "check_needs(find_workload('affine'))",
    ),
    Row("torch_device('TPU')", "or omit the device", "torch_device('cpu')"),
    Row(
        "decide(short(), TERMS, A10G)",
        "Measure again, with smaller sizes or a longer timeout",
        "decide(a_run(), TERMS, A10G)",
    ),
    Row(
        "command('bench decide doubtful.json --steps-per-trial 9 --cluster cluster.json')",
        "Run more rounds on an idle machine",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json')",
    ),
    Row("noise(load=3)", "Stop them, or measure on an idle machine", "noise(load=0.1)"),
    Row("noise(throttled_s=3)", "Use fewer CPUs, or raise the quota", "noise(throttled_s=0)"),
    Row("noise(gpu_throttled=('power',))", "Cool the GPU, or lock its clocks", "noise()"),
    Row("equal(1.5)", "Run more rounds, or measure on an idle machine", "equal(1.0)"),
    Row(
        "decide(a_run(('cpu',)), TERMS, A10G)",
        "run `tune-policies bench run mlp@1,16,256 --device cpu --device gpu --cpus 1 --output gpu-run.json`",
        "sizes(['mlp@1,16,256'], []), parse_devices(['cpu', 'gpu']), decide(a_run(('cpu', 'gpu')), TERMS, A10G)",
    ),
    Row(
        "decide(a_run(), TERMS, A10G, packing=packed_on('NVIDIA H200'))",
        "Run `tune-policies bench packing --output packing.json` on A10G, or omit the record",
        "decide(a_run(), TERMS, A10G, packing=packed_on('NVIDIA A10G')), decide(a_run(), TERMS, A10G)",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --num-trials 9')",
        "Pass --node-cpus",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --num-trials 9 --node-cpus 8')",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --num-trials 9 --node-cpus 1')",
        "Pass --node-cpus 4 or more",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --num-trials 9 --node-cpus 4')",
    ),
    Row(
        "Instance(name='g', price=1, cpus=8, gpus=1)",
        "Set both fields or neither",
        "Instance(name='g', price=1, cpus=8, gpus=1, accelerator_type='L4'), Instance(name='g', price=1, cpus=8)",
    ),
    Row(
        "Prices(date='2026-11-01', currency='USD')",
        "Set instances, or cpu and gpus",
        "Prices(date='2026-11-01', currency='USD', cpu=1, gpus={'L4': 1})",
    ),
    Row(
        "ON_A10G.per_hour(cpus=1, gpus=1)",
        "Use --gpu-type to pass a name from the price file (known: A10G)",
        "ON_A10G.per_hour(cpus=1, gpus=1, accelerator_type='A10G')",
    ),
    Row(
        "ON_A10G.per_hour(cpus=1, gpus=1, accelerator_type='A10')",
        "Add its price, or choose another name with --gpu-type",
        "ON_A10G.per_hour(cpus=1, gpus=1, accelerator_type='A10G')",
    ),
    Row(
        "ON_A10G.per_hour(cpus=1)",
        "or the price of one CPU as `cpu`",
        "ON_A10G.model_copy(update={'cpu': 0.1}).per_hour(cpus=1)",
    ),
    Row(
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --prices prices.yaml --spot')",
        "or omit --spot",
        "command('bench decide measured.json --steps-per-trial 9 --cluster cluster.json --prices prices.yaml')",
    ),
    Row(
        "command('bench report run.json --output a.html --decision gpu.yaml')",
        "create a decision with `tune-policies bench decide run.json --steps-per-trial 5000 --output decision.json`",
        "command('bench decide run.json --steps-per-trial 5000 --output decision.json --cluster cluster.json',"
        " run_json=FILES['measured.json'])",
    ),
    Row(
        "command('bench report run.json --output a.html --packing gpu.yaml')",
        "create a record with `tune-policies bench packing --output FILE`",
        "command('bench report run.json --output a.html')",
    ),
    Row(
        "command('bench compare on-cpus.json')",
        "tune-policies bench run mlp@1,16,256 --device cpu --device gpu --cpus 1",
        "sizes(['mlp@1,16,256'], []), parse_devices(['cpu', 'gpu'])",
    ),
    Row(
        "in_folder(lambda: write_run_set(a_run(), Path('old.txt')))",
        "Choose another file, or delete old.txt",
        "in_folder(lambda: write_run_set(a_run(), Path('new.json')))",
    ),
]

TABLE = [*FILE_ROWS, *COMMAND_ROWS, *DOCTOR_ROWS, *PROBE_ROWS, *BENCHMARK_ROWS]

OF_RAY = "a Ray cluster: tests/on_ray/planner/test_probe.py, test_token.py, test_readiness.py and test_doctor.py"
OF_PACKAGES = (
    "a package that is missing or new: tests/package/benchmarks/test_run_command.py and tests/package/test_wheel.py"
)
OF_RUNS = "a benchmark on Ray: tests/on_ray/benchmarks/test_measuring.py and test_packing_runs.py"
ELSEWHERE = {
    "Pass a file or folder that can be opened": "a file that fails to open: tests/package/planner/test_cli.py",
    "the working folder was deleted": "a shell in a deleted folder: tests/package/planner/test_cli.py",
    "pages require Jinja": OF_PACKAGES,
    "Run pip install 'tune-policies[…]'": OF_PACKAGES,
    "the NVML binding is missing": OF_PACKAGES,
    "lacks a part that … needs": OF_PACKAGES,
    "To install a tested version, run: %s": "another version of Ray: tests/package/planner/test_untried_ray.py",
    "Check that Ray is running, and try again": OF_RAY,
    "has no alive node. Start a node with `ray start`": OF_RAY,
    "Reserve fewer resources for the outer trial": OF_RAY,
    "Install it there with pip or in the node's image": OF_RAY,
    "is not in Ray's GCS and was not found on the head node": OF_RAY,
    "Call ray.init() first": OF_RAY,
    "is already connected to a Ray cluster": OF_RAY,
    "pass another address": OF_RAY,
    "no Ray cluster responds at": OF_RAY,
    "did not answer within": OF_RAY,
    "refuses the authentication token": OF_RAY,
    "Try again.": OF_RAY,
    "Request fewer concurrent trials, or add nodes.": OF_RAY,
    "Set CUDA_VISIBLE_DEVICES to one of them": "several GPUs",
    "its process had not started": OF_RUNS,
    "its first epoch was stopped early": OF_RUNS,
    "it was still running": OF_RUNS,
    "Run these commands in the same working directory": OF_RUNS,
    "matplotlib cannot draw": "a machine without LaTeX",
    "no action is required": "nothing",
}
"""Messages with an advice that is not in the table, and what following the advice requires."""

PARTS = (
    "tune_policies/cli",
    "tune_policies/files",
    "tune_policies/probe",
    "tune_policies/ray_compat",
    "tune_policies/autoscaling",
    "benchmarks",
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.mistake}: {row.advice}")
def test_an_advice_is_in_the_message_and_works(row):
    follow(row, NAMES)


def test_every_message_with_an_advice_is_in_the_table_or_needs_more_than_this_process():
    assert without_row(texts_with_advice(*PARTS), TABLE, ELSEWHERE, NAMES) == []


def test_the_messages_that_are_followed_elsewhere_exist():
    assert outdated(texts_with_advice(*PARTS), ELSEWHERE) == []
