"""Ray's agent exports the metrics of a run for Prometheus."""

import re
import socket
import time
import urllib.request

import pytest
import ray
from ray import tune

from tests.clusters import nodes
from tune_policies import GpuPolicy, PolicyCallback, PolicyScheduler

pytest.importorskip("opentelemetry.exporter.prometheus", reason="Ray's agent exports metrics only with ray[default]")
pytest.importorskip("opencensus", reason="Ray's agent exports metrics only with ray[default]")

PLAN = GpuPolicy(gpus=0.5, cpus=1).plan(nodes((2, 1)))
SLOT = "1 CPU, 0.5 GPU"
GIB = 2**30


def train(config):
    usage = {"pid": 1, "gpus": 0.5, "share_bytes": 4 * GIB, "peak_reserved_bytes": 3 * GIB, "num_ooms": 2}
    for _ in range(config["num_seconds"]):
        time.sleep(1)
        tune.report({"gpu_memory": usage})


class ReadMetrics(tune.Callback):
    """Reads the exported metrics during the run until they contain the GPU memory."""

    def __init__(self, port):
        self.port, self.exported, self.next_s = port, {}, 0.0

    def on_step_end(self, iteration, trials, **info):
        if time.monotonic() < self.next_s or ("gpu_memory_bytes", SLOT, "0") in self.exported:
            return
        self.next_s = time.monotonic() + 1
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        for name, tags, value in re.findall(r"^ray_tune_policies_(\w+){(.*)} (\S+)$", "\n".join(lines), re.MULTILINE):
            found = dict(re.findall(r'(\w+)="([^"]*)"', tags))
            kept = [found[tag] for tag in ("slot", "place", "resource", "state", "kind") if tag in found]
            if found["run"] == "run" and float(value):
                self.exported[name, *kept] = float(value)


def test_the_metrics_of_a_run_are_exported_by_rays_agent(tmp_path):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    options = {"_metrics_export_port": port, "_system_config": {"metrics_report_interval_ms": 1000}}
    ray.init(address="local", num_cpus=2, num_gpus=1, include_dashboard=False, **options)
    reads = ReadMetrics(port)
    try:
        tune.run(
            train,
            scheduler=PolicyScheduler(PLAN),
            config={"num_seconds": 40},
            num_samples=2,
            callbacks=[PolicyCallback(), reads],
            stop=lambda trial_id, result: ("gpu_memory_bytes", SLOT, "0") in reads.exported,
            storage_path=str(tmp_path),
            name="run",
            verbose=0,
        )
    finally:
        ray.shutdown()

    exported = reads.exported
    assert exported["slots", SLOT] == 2
    assert exported["resources", "GPU"] == 1
    assert exported["gpu_memory_bytes", SLOT, "0"] == 3 * GIB
    assert exported["gpu_memory_share_bytes", SLOT, "0"] == 4 * GIB
    assert exported["out_of_memory_total", "allocation refused"] in (2, 4)
    assert exported["trials", "not ended"] == 2
