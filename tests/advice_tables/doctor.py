"""Advice in the findings of ``tune-policies doctor`` about nodes."""

from tests.advice import AdviceTable, Row, named
from tests.clusters import GIB
from tune_policies.probe.doctor.node_checks import Framework, Gpu, NodeFacts, RayCounts, diagnose


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


def amd(**variables):
    """Return a node with two GPUs of AMD and these environment variables."""
    ray = counts(accelerator_type="AMD-Instinct-MI300X-OAM")
    return without_driver(ray=ray, has_amd_driver=True, num_nvidia_on_pci=0, device_variables=variables)


OF_RAY = (
    "a Ray cluster: tests/on_ray/planner/test_probe.py, test_cluster_token.py, test_readiness.py and test_doctor.py"
)

ROWS = [
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

NAMES = {
    **named(Framework, amd, counts, doctor, gpu, node, torch, without_driver),
    "GIB": GIB,
}

ELSEWHERE = {
    "Check that Ray is running, and try again": OF_RAY,
    "has no alive node. Start a node with `ray start`": OF_RAY,
    "no action is required": "nothing",
}

TABLE = AdviceTable(
    parts=("tune_policies/probe/doctor",),
    rows=ROWS,
    elsewhere=ELSEWHERE,
    names=NAMES,
)
