"""A sound file of each kind that is read, small enough to be damaged some ten thousand times, and what reads it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests import decisions, measured_runs, reports
from tune_policies import (
    ClusterCapacity,
    GpuDevice,
    NodeCapacity,
    Resources,
    load_capacity,
    load_catalog,
    load_decision,
    load_policy,
)
from tune_policies.benchmarks.decide.prices import load_prices
from tune_policies.benchmarks.record.packing_record import read_throughput
from tune_policies.benchmarks.record.run_set import RunSet
from tune_policies.benchmarks.record.run_set_file import KEY, read_run_set
from tune_policies.files.reading import read_value
from tune_policies.kuberay.lint.fixes import fixed_file
from tune_policies.kuberay.lint.linting import lint_file
from tune_policies.kuberay.reading.load_cluster import load_cluster
from tune_policies.plan.gpu_memory_profile import GpuMemoryMeasurement, GpuMemoryProfile
from tune_policies.policies.policy_file import load_runtime_env
from tune_policies.trainers.gpu_memory.overhead import MeasuredOverhead, Overheads
from tune_policies.tune.usage.gpu_memory_usage import GpuMemoryUsage, read_usage
from tune_policies.tune.usage.resource_usage import PlanInUse, ResourceUsage, TrialSpan

_GIB: Final = 2**30
_a_run: Callable[..., RunSet] = measured_runs.a_run
_a_decision: Callable[..., Any] = decisions.a_decision
_a_packing_record: Callable[..., Any] = reports.a_packing_record


class SoundFile(NamedTuple):
    """A file, and what reads it.

    Attributes:
        text: What is in it.
        load: Reads a file of this kind.
    """

    text: str
    load: Callable[[Path], object]


_POLICY: Final = """\
kind: FirstFeasiblePolicy
policies:
- {kind: GpuPolicy, gpus: 0.25, cpus: 2, accelerator_type: [H100, A100]}
- kind: CappedPolicy
  max_concurrent_trials: 8
  inner: &inner {kind: CpuPolicy, cpus: 1, memory: 4GiB, custom: {license: 1}}
- *inner
"""

_CATALOGUE: Final = """\
nodes:
- name: gpu-large
  cpus: 32
  memory: 128GiB
  gpus: 4
  accelerator_type: A100
  price_per_hour: 12.5
  count: 8
- {name: cpu, cpus: 16, memory: 64GiB, price_per_hour: 0.6}
"""

_PRICES: Final = "date: '2026-11-21'\ncurrency: USD\ncpu: 0.04\ngpus: {A10G: 1.2, H100: 4}\n"

_RUNTIME_ENV: Final = "working_dir: s3://bucket/code.zip\npip: [torch, 'numpy>=2']\nenv_vars: {A: '1'}\n"

_MANIFEST: Final = """\
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

_CLUSTER_YAML: Final = """\
cluster_name: mine
max_workers: 6
head_node_type: head
available_node_types:
  head: {resources: {CPU: 2}, node_config: {}}
  gpu: {resources: {CPU: 8, GPU: 1}, labels: {a: b}, min_workers: 1, max_workers: 9, node_config: {}}
"""


def _capacity() -> str:
    devices = tuple(GpuDevice(index=n, uuid=f"GPU-{n}", name="NVIDIA A100", memory_bytes=80 * _GIB) for n in range(2))
    node = NodeCapacity(
        node_id="a" * 8,
        resources=Resources(cpus=16, gpus=2, memory_bytes=64 * _GIB, custom={"license": 1}),
        accelerator_type="A100",
        devices=devices,
        labels={"ray.io/node-group": "gpu"},
    )
    return ClusterCapacity(nodes=(node, node.model_copy(update={"node_id": "b" * 8}))).to_json()


def _run_set() -> str:
    return json.dumps({KEY: _a_run(sizes=(16,), rounds=2).model_dump(mode="json"), "version": "1.0", "benchmarks": []})


def _profile() -> str:
    measurements = [
        GpuMemoryMeasurement(
            config={"batch": batch}, peak_bytes={"torch": batch * 2**20}, total_bytes=2**36, gpu_model="A100"
        )
        for batch in (16, 32, 64)
    ]
    return GpuMemoryProfile(measurements=tuple(measurements)).to_json()


def _usage_of_a_run() -> str:
    spans = tuple(
        TrialSpan(trial=f"t{n}", slot="1 GPU", place=n, began_s=n, ended_s=n + 5, end="finished") for n in range(3)
    )
    return ResourceUsage(elapsed_s=9, plans=(PlanInUse(at_s=0, why="", text="a plan"),), spans=spans).to_json()


def _overheads() -> str:
    measured = MeasuredOverhead(
        gpu_model="A100",
        framework="torch",
        version="2.13.0",
        overhead_bytes=2**29,
        measured_on="2026-07-01",
        how="process",
    )
    return Overheads(measured=(measured,)).to_json()


def _results() -> str:
    usage = GpuMemoryUsage(pid=7, gpus=0.5, share_bytes=8 * _GIB, peak_reserved_bytes=_GIB, limit_bytes={"torch": _GIB})
    return f"{json.dumps({'loss': 1.0, 'gpu_memory': usage.to_result()})}\n" * 3


def _read_profile(path: Path) -> object:
    policy = path.with_name("policy-of-a-profile.yaml")
    policy.write_text(f"{{kind: GpuMemoryPolicy, profile: {path.name}}}")
    return load_policy(policy)


def _read_results(path: Path) -> object:
    trial = path.with_name("run") / "trial"
    trial.mkdir(parents=True, exist_ok=True)
    path.replace(trial / "result.json")
    return read_usage(trial.parent)


def sound_files() -> dict[str, SoundFile]:
    """Return one of each kind, by the name of the kind."""
    return {
        "policy": SoundFile(_POLICY, load_policy),
        "catalogue": SoundFile(_CATALOGUE, load_catalog),
        "prices": SoundFile(_PRICES, load_prices),
        "runtime environment": SoundFile(_RUNTIME_ENV, load_runtime_env),
        "capacity": SoundFile(_capacity(), load_capacity),
        "decision": SoundFile(_a_decision().to_json(), load_decision),
        "profile": SoundFile(_profile(), _read_profile),
        "run set": SoundFile(_run_set(), read_run_set),
        "record of throughput": SoundFile(_a_packing_record().to_json(), read_throughput),
        "record of a run": SoundFile(_usage_of_a_run(), lambda path: read_value(path, ResourceUsage, "record")),
        "overheads": SoundFile(_overheads(), lambda path: read_value(path, Overheads, "record of overheads")),
        "results of Tune": SoundFile(_results(), _read_results),
        "manifest": SoundFile(_MANIFEST, load_cluster),
        "cluster YAML": SoundFile(_CLUSTER_YAML, load_cluster),
        "manifest, by lint": SoundFile(_MANIFEST, lint_file),
        "manifest, by lint --fix": SoundFile(_MANIFEST, lambda path: fixed_file(path, unsafe=True)),
    }
