"""A loader reads a randomly damaged file, or rejects it with an error that names the file."""

import json
import random
import re
import time
import warnings

import pytest

from tests import decisions, measured_runs, reports
from tune_policies import (
    ClusterCapacity,
    GpuDevice,
    InvalidResourcesError,
    NodeCapacity,
    Resources,
    load_decision,
    load_policy,
)
from tune_policies.benchmarks.decide.price_file import load_prices
from tune_policies.benchmarks.record.packing_record import read_throughput
from tune_policies.benchmarks.record.run_set_file import KEY, read_run_set
from tune_policies.files.reading import read_value
from tune_policies.kuberay import load_capacity, load_catalog
from tune_policies.kuberay.lint.linting import lint_file
from tune_policies.kuberay.reading.load_cluster import load_cluster
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile
from tune_policies.policies.policy_file import load_runtime_env
from tune_policies.trainers.gpu_memory.framework_overhead import MeasuredOverhead, Overheads
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage, read_usage
from tune_policies.trainers.usage.resource_usage import PlanInUse, ResourceUsage, TrialSpan

GIB = 2**30
MOST_S = 5.0
TOKENS = (
    *(b"null", b"true", b"-1", b"0", b"1e308", b"1e999", b".nan", b"NaN", b"-0.0", b"9" * 400, b"0x" + b"f" * 99),
    *(b"[", b"]", b"{", b"}", b"[[[[", b'"', b"'", b":", b": ", b",", b"\n", b"\n\n", b"\t", b"- ", b"# ", b"|\n"),
    *(b"&a ", b"*a", b"<<: *inner", b"!!python/object/apply:os.system [x]", b"!!binary aGk=", b"--- ", b"%YAML 9.9\n"),
    *(b"\x00", b"\x1b[2J", b"\xff", b"\xed\xa0\x80", "\u202e".encode(), "\u2028".encode(), b"\\ud800", b"{{ .x }}"),
)
"""Tokens that have a meaning for a parser, or that no parser should accept."""

POLICY = """\
kind: FirstFeasiblePolicy
policies:
- {kind: GpuPolicy, gpus: 0.25, cpus: 2, accelerator_type: [H100, A100]}
- kind: CappedPolicy
  max_concurrent_trials: 8
  inner: &inner {kind: CpuPolicy, cpus: 1, memory: 4GiB, custom: {license: 1}}
- *inner
"""
CATALOGUE = """\
nodes:
- {name: gpu-large, cpus: 32, memory: 128GiB, gpus: 4, accelerator_type: A100, price_per_hour: 12.5, count: 8}
- {name: cpu, cpus: 16, memory: 64GiB, price_per_hour: 0.6}
"""
MANIFEST = """\
# A cluster.
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: demo, labels: {team: a}}
spec:
  rayVersion: "2.56.0"
  enableInTreeAutoscaling: true
  autoscalerOptions: {version: v2, idleTimeoutSeconds: 60}
  headGroupSpec:
    rayStartParams: {num-cpus: "0"}
    template: {spec: {containers: [{name: ray, resources: {limits: {cpu: "4", memory: 16Gi}}}]}}
  workerGroupSpecs:
  - groupName: gpu
    replicas: 9
    minReplicas: 0
    maxReplicas: 3
    rayStartParams: {resources: "'{\\"slot\\": 2}'", num-gpus: "1"}
    template:
      spec:
        nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}
        containers:
        - name: ray
          image: rayproject/ray:2.56.0
          env: [{name: A, value: b}]
          resources: {limits: {cpu: 500m, memory: 16Gi, nvidia.com/gpu: 1}}
"""
CLUSTER_YAML = """\
cluster_name: mine
max_workers: 6
head_node_type: head
available_node_types:
  head: {resources: {CPU: 2}, node_config: {}}
  gpu: {resources: {CPU: 8, GPU: 1}, labels: {a: b}, min_workers: 1, max_workers: 9, node_config: {}}
"""
NODE = NodeCapacity(
    node_id="a" * 8,
    resources=Resources(cpus=16, gpus=1, memory_bytes=64 * GIB, custom={"license": 1}),
    accelerator_type="A100",
    devices=(GpuDevice(index=0, uuid="GPU-0", name="NVIDIA A100", memory_bytes=80 * GIB),),
    labels={"ray.io/node-group": "gpu"},
)
RUN_SET = {KEY: measured_runs.a_run(sizes=(16,), rounds=2).model_dump(mode="json"), "version": "1.0", "benchmarks": []}
PROFILE = GpuMemoryProfile(
    measurements=[
        GpuMemoryMeasurement(
            config={"batch": batch}, peak_bytes={"torch": batch * 2**20}, total_bytes=2**36, gpu_model="A100"
        )
        for batch in (16, 32, 64)
    ]
)
USAGE = ResourceUsage(
    elapsed_s=9,
    plans=(PlanInUse(at_s=0, why="", text="a plan"),),
    spans=(TrialSpan(trial="t1", slot="1 GPU", place=1, began_s=1, ended_s=5, end="finished"),),
)
OVERHEAD = MeasuredOverhead(
    gpu_model="A100", framework="torch", version="2.13.0", overhead_bytes=2**29, measured_on="2026-07-01", how="process"
)
RESULT = {"loss": 1.0, "gpu_memory": GpuMemoryUsage(pid=7, gpus=0.5, share_bytes=8 * GIB).to_result()}


def read_profile(path):
    policy = path.with_name(f"policy-of-{path.name}")
    policy.write_text(f"{{kind: GpuMemoryPolicy, profile: {path.name}}}")
    return load_policy(policy)


def read_results(path):
    trial = path.with_name("run") / path.name
    trial.mkdir(parents=True, exist_ok=True)
    path.replace(trial / "result.json")
    return read_usage(trial.parent)


SOUND = {
    "policy": (POLICY, load_policy),
    "catalogue": (CATALOGUE, load_catalog),
    "prices": ("date: '2026-11-21'\ncurrency: USD\ncpu: 0.04\ngpus: {A10G: 1.2, H100: 4}\n", load_prices),
    "runtime environment": ("working_dir: s3://bucket/code.zip\npip: [torch]\nenv_vars: {A: '1'}\n", load_runtime_env),
    "capacity": (ClusterCapacity(nodes=(NODE,)).to_json(), load_capacity),
    "decision": (decisions.a_decision().to_json(), load_decision),
    "profile": (PROFILE.to_json(), read_profile),
    "run set": (json.dumps(RUN_SET), read_run_set),
    "record of throughput": (reports.a_packing_record().to_json(), read_throughput),
    "record of a run": (USAGE.to_json(), lambda path: read_value(path, ResourceUsage, "record")),
    "overheads": (Overheads(measured=(OVERHEAD,)).to_json(), lambda path: read_value(path, Overheads, "record")),
    "results of Tune": (f"{json.dumps(RESULT)}\n" * 3, read_results),
    "manifest": (MANIFEST, load_cluster),
    "cluster YAML": (CLUSTER_YAML, load_cluster),
    "manifest, by lint": (MANIFEST, lint_file),
}


def damaged(content, rng):
    """Return the content with one damaged range of bytes."""
    start = rng.randrange(len(content) + 1)
    end = min(len(content), start + rng.choice((1, 1, 2, 4, 8, 64, len(content))))
    head, part, tail = content[:start], content[start:end], content[end:]
    flipped = bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:] if part else b""
    words = content.split(b" ")
    words[rng.randrange(len(words))] = rng.choice(TOKENS)
    return rng.choice(
        (
            head + flipped + tail,
            head,
            head + tail,
            head + part + part + tail,
            part + head + tail,
            b" ".join(words),
            head + rng.choice(TOKENS) + part + tail,
        )
    )


@pytest.mark.parametrize("name", SOUND)
def test_an_undamaged_file_is_read(name, tmp_path):
    text, load = SOUND[name]
    (tmp_path / "sound.yaml").write_text(text)

    assert load(tmp_path / "sound.yaml") is not None


@pytest.mark.parametrize("name", SOUND)
def test_a_damaged_file_is_read_or_rejected_with_an_error_that_contains_its_name(name, tmp_path):
    text, load = SOUND[name]
    path = tmp_path / "damaged.yaml"
    refusals, times_s = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(100):
            rng = random.Random(f"{name} {seed}")
            content = text.encode()
            for _ in range(rng.randint(1, 4)):
                content = damaged(content, rng)
            path.write_bytes(content)
            began_s = time.process_time()
            try:
                load(path)
            except InvalidResourcesError as error:
                refusals.append(str(error))
            times_s.append(time.process_time() - began_s)

    assert [each for each in refusals if "damaged.yaml" not in each or "\n\n" in each or len(each) > 20_000] == []
    assert not any(re.search("[\x00-\x08\x0b-\x1f]", each) for each in refusals)
    assert max(times_s) < MOST_S
