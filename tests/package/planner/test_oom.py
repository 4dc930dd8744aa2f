"""Tests of real OOM errors of the installed frameworks and Ray.

Each framework runs in its own process, because their imports conflict.
"""

import json
import subprocess
import sys

import pytest

COMMON = """
import copy, json, traceback
from ray import cloudpickle
from tune_policies.oom import classify_oom, classify_oom_text
from tune_policies.trainers.process.oom_note import add_report
from tune_policies.trainers.usage.oom_report import OomReport
from ray.exceptions import RayTaskError

CASES = {}

def caught(act):
    try:
        act()
    except BaseException as error:
        return error

def raise_(error):
    raise error

def task_error(error):
    text = "".join(traceback.format_exception(error))
    return RayTaskError("f", text, error, proctitle="ray::f", pid=1, ip="10.0.0.1")

def through_ray(error):
    return cloudpickle.loads(cloudpickle.dumps(task_error(error).as_instanceof_cause()))

def tell(name, error):
    error = caught(lambda: raise_(error))
    text = "".join(traceback.format_exception(error))
    once = through_ray(error)
    answers = [classify_oom(error), classify_oom(once), classify_oom(through_ray(caught(lambda: raise_(once))))]
    answers += [classify_oom_text(text), classify_oom_text(str(once))]
    if answers[0].kind != "none":
        add_report(error, OomReport(out_of_memory=answers[0]))
        # Tune copies the error of a function. The program that runs the trial gets the copy through Ray.
        answers += [OomReport.from_error(through_ray(copy.copy(error))).out_of_memory]
    CASES[name] = sorted({answer.model_dump_json(exclude_defaults=True) for answer in answers})
"""

TORCH = """
import numpy, torch, cupy
from cupy_backends.cuda.api.runtime import CUDARuntimeError

cuda = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB"
tell("torch", torch.OutOfMemoryError(cuda))
tell("torch by its older name", torch.cuda.OutOfMemoryError(cuda))
tell("torch, accelerator", torch.AcceleratorError("CUDA error: out of memory"))
tell("torch, other accelerator error", torch.AcceleratorError("CUDA error: device-side assert triggered"))
tell("torch, distributed", torch.distributed.DistBackendError("NCCL error\\nCuda failure 2 'out of memory'"))
tell("torch, other distributed error", torch.distributed.DistBackendError("Cuda failure 2 'invalid usage'"))
tell("torch on the host", caught(lambda: torch.empty(2**48)))
tell("torch, a shape that is wrong", caught(lambda: torch.empty((2**40, 2**40))))
tell("NumPy", caught(lambda: numpy.empty(2**47)))
tell("NumPy, a shape that is wrong", caught(lambda: numpy.empty(2**62)))
tell("Python", caught(lambda: bytearray(2**50)))
tell("CuPy", cupy.cuda.memory.OutOfMemoryError(1024, 2048, 4096 * 2**20))
tell("CuPy, driver", CUDARuntimeError(2))
tell("CuPy, other driver error", CUDARuntimeError(100))
"""

JAX = """
import jax, jax.numpy as jnp

tell("JAX", jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."))
tell("JAX on the host", caught(lambda: jnp.zeros(2**45, dtype="float32")))
tell("JAX, a quota", jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Quota exceeded"))
"""

TENSORFLOW = """
import tensorflow as tf

def exhausted(text):
    return tf.errors.ResourceExhaustedError(None, None, text)

tensor = "OOM when allocating tensor with shape[1024,1024,256] and type float on /job:localhost/device:"
graph = "Graph execution error:\\n\\nDetected at node mul defined at:\\n  File 'a.py', line 1, in f\\n\\n"
tell("TensorFlow", exhausted(tensor + "GPU:0 by allocator GPU_0_bfc [Op:Mul]"))
tell("TensorFlow, a graph", exhausted(graph + tensor + "GPU:0 by allocator GPU_0_bfc\\n\\t [[{{node mul}}]] [Op:f]"))
tell("TensorFlow on the host", exhausted(tensor + "CPU:0 by allocator mklcpu [Op:Fill]"))
tell("TensorFlow, a full disk", exhausted("/data/model.ckpt; No space left on device [Op:SaveV2]"))
"""

RAY = """
from ray.exceptions import ActorDiedError, OutOfDiskError, OutOfMemoryError, WorkerCrashedError
from ray.train import ControllerError, WorkerGroupError
from ray.tune import TuneError

ran_out = OutOfMemoryError("Task was killed due to the node running low on memory.\\n(task, pid=1, memory used=2.50GB)")
tell("Ray", ran_out)
tell("Ray, a full disk", OutOfDiskError("out of disk"))
tell("Ray, a crash", WorkerCrashedError())
tell("Ray, an actor", ActorDiedError(task_error(caught(lambda: bytearray(2**50)))))
tell("Ray, another actor", ActorDiedError(task_error(ValueError("no memory"))))
tell("Ray Train", WorkerGroupError(f"[Rank 1 Error Snippet]:\\n{ran_out}", {0: ValueError("no"), 1: ran_out}))
tell("Ray Train, other", WorkerGroupError("rank 1", {1: ValueError("ran out of memory")}))
tell("Ray Train, controller", ControllerError(through_ray(ran_out)))
tell("Ray Tune", TuneError(ran_out))
"""

GIB = 2**30
NONE = {"kind": "none"}


def oom(kind, framework, requested_bytes=None, **fields):
    requested = {} if requested_bytes is None else {"requested_bytes": requested_bytes}
    return {"kind": kind, "framework": framework, **requested, **fields}


OF_RAY = oom("host", "ray", used_bytes=5 * GIB // 2, killed_workers=[{"used_bytes": 5 * GIB // 2}])
OF_TORCH = {
    "torch": oom("accelerator", "torch", 2 * GIB),
    "torch by its older name": oom("accelerator", "torch", 2 * GIB),
    "torch, accelerator": oom("accelerator", "torch"),
    "torch, other accelerator error": NONE,
    "torch, distributed": oom("accelerator", "torch"),
    "torch, other distributed error": NONE,
    "torch on the host": oom("host", "torch", 2**50),
    "torch, a shape that is wrong": NONE,
    "NumPy": oom("host", "python", 2**50),
    "NumPy, a shape that is wrong": NONE,
    "Python": oom("host", "python"),
    "CuPy": oom("accelerator", "cupy", 1024, limit_bytes=4 * GIB, cause="neighbour"),
    "CuPy, driver": oom("accelerator", "cupy"),
    "CuPy, other driver error": NONE,
}
OF_OTHERS = {
    JAX: {
        "JAX": oom("accelerator", "jax", 16 * GIB),
        "JAX on the host": oom("host", "jax", 2**47),
        "JAX, a quota": NONE,
    },
    TENSORFLOW: {
        "TensorFlow": oom("accelerator", "tensorflow", GIB),
        "TensorFlow, a graph": oom("accelerator", "tensorflow", GIB),
        "TensorFlow on the host": oom("host", "tensorflow", GIB),
        "TensorFlow, a full disk": NONE,
    },
    RAY: {
        "Ray": OF_RAY,
        "Ray, a full disk": NONE,
        "Ray, a crash": NONE,
        "Ray, an actor": oom("host", "python"),
        "Ray, another actor": NONE,
        "Ray Train": OF_RAY,
        "Ray Train, other": NONE,
        "Ray Train, controller": OF_RAY,
        "Ray Tune": OF_RAY,
    },
}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(TORCH, OF_TORCH, id="torch"),
        *(
            pytest.param(code, expected, id=next(iter(expected)), marks=pytest.mark.rest)
            for code, expected in OF_OTHERS.items()
        ),
    ],
)
def test_a_real_error_keeps_its_class_if_ray_wraps_it_or_only_its_text_is_available(code, expected):
    program = f"{COMMON}{code}\nprint(json.dumps(CASES))"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: [json.loads(answer) for answer in answers] for name, answers in found.items()} == {
        name: [each] for name, each in expected.items()
    }
