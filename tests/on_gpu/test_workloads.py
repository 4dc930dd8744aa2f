"""Each workload has the same losses on GPU and CPU, and ResNet-50 is about as fast as in published results.

Each workload runs in a new process, as in a benchmark.
"""

import json
import subprocess
import sys

import pytest

from tests.on_gpu.device import evaluate_with_torch
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.workloads.registry import BUILT_IN, check_needs

pytestmark = pytest.mark.gpu

SIZES = dict.fromkeys(BUILT_IN, 32) | {"matmul": 256, "resnet50": 4, "resnet50-tf32": 4, "resnet50-fp16": 1}
SIZES |= dict.fromkeys(("doubling", "branching", "boosting", "iterative-tasks", "iterative-actor"), 4096)

EPOCH = """
import contextlib, json, sys
import ray
from tune_policies.benchmarks.workloads.registry import load_workload
from tune_policies import ProbeError

name, size, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if name == "iterative-tasks":
    ray.init(address="local", num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
found = {"tolerance": None}
with contextlib.suppress(ProbeError):
    for phase in ("with_transfers", "compute"):
        steps = load_workload(name)(size, device)
        step = getattr(steps, phase)
        found[phase] = None if step is None else [float(step()) for _ in range(steps.steps_per_epoch)]
    found["tolerance"] = steps.tolerance
print(json.dumps(found))
"""

THROUGHPUT = """
import json, sys, time
import torch
from tune_policies.benchmarks.workloads.registry import load_workload

steps = load_workload(sys.argv[1])(int(sys.argv[2]), "gpu")
for _ in range(10):
    steps.compute()
torch.cuda.synchronize()
start = time.perf_counter()
for _ in range(30):
    steps.compute()
torch.cuda.synchronize()
print(json.dumps(30 * steps.samples_per_step / (time.perf_counter() - start)))
"""


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_workload_has_the_same_losses_on_gpu_and_cpu(name):
    try:
        check_needs(BUILT_IN[name])
    except InvalidResourcesError as error:
        pytest.skip(str(error))
    on_gpu = run(EPOCH, name, SIZES[name], "gpu")
    if on_gpu["tolerance"] is None:
        pytest.skip(f"the framework of {name} finds no GPU on this machine")
    on_cpu = run(EPOCH, name, SIZES[name], "cpu")

    close = {phase: losses and pytest.approx(losses, rel=on_cpu["tolerance"]) for phase, losses in phases(on_cpu)}
    assert dict(phases(on_gpu)) == close


def phases(found):
    return [(phase, found[phase]) for phase in ("with_transfers", "compute")]


# These figures are published for one H200 as "FP32" and "FP16". With 24.6 GFLOP per image, the "FP32" figure equals
# 56 TFLOP/s. This is too close to the peak of 67 TFLOP/s without tensor cores, so "FP32" means PyTorch's float32
# default, which uses TF32 in convolutions.
@pytest.mark.whole_gpu
@pytest.mark.parametrize(("name", "images_per_s"), [("resnet50-tf32", 2_259), ("resnet50-fp16", 3_079)])
def test_resnet_50_on_an_h200_has_about_the_published_speed(name, images_per_s):
    if "H200" not in evaluate_with_torch("torch.cuda.get_device_name(0)"):
        pytest.skip("the published figures are for an H200")

    assert 0.3 * images_per_s < run(THROUGHPUT, name, 256) < 1.5 * images_per_s
