"""Runs the doctor on real clusters with simulated GPUs."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import ray
import ray.cloudpickle
import torch

from tests.on_ray.rays import cluster_of, local_ray, run_without_this_package
from tune_policies import InvalidResourcesError, ProbeError
from tune_policies.probe import node_facts
from tune_policies.probe.doctor import cluster_reader
from tune_policies.probe.doctor.cluster_reader import examine

# No machine has this many GPUs or CPUs.
MANY_GPUS, MANY_CPUS = 64, 4096

SHOW_GPUS = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"  # otherwise, Ray 2.50 hides GPUs from tasks without GPUs

on_a_cpu_build = pytest.mark.skipif(torch.version.cuda is not None, reason="requires a CPU build of torch")


def doctor(environment, *arguments):
    command = [sys.executable, "-m", "tune_policies", "doctor", *arguments]
    environment = {**environment, "COLUMNS": "80"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def other_torch(tmp_path_factory):
    """A folder with the metadata of a torch version that is not installed."""
    folder = tmp_path_factory.mktemp("path")
    metadata = folder / "torch-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.1\n")
    return folder


@pytest.fixture(scope="module")
def examined(other_torch, isolated_environment):
    """The diagnosis of two nodes, and the output of the command.

    One node declares more resources than the machine has. The other node has a different version of torch and
    a hidden GPU. The fixture limits the doctor to one node at a time.
    """
    path = os.pathsep.join([str(other_torch), os.environ.get("PYTHONPATH", "")])
    two_nodes = (
        {"num_cpus": MANY_CPUS, "num_gpus": MANY_GPUS},
        {"num_cpus": 1, "env_vars": {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0", SHOW_GPUS: "0"}},
    )
    with cluster_of(*two_nodes) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_reader, "_AT_ONCE", 1)
        diagnosis = examine(cluster.address)
        assert not ray.is_initialized()
        return diagnosis, doctor(isolated_environment, "--address", cluster.address)


@pytest.fixture(scope="module")
def diagnosis(examined):
    return examined[0]


def findings(diagnosis):
    return {finding.what: finding for finding in diagnosis.findings}


def node_with(diagnosis, gpus):
    (node,) = [node for node in diagnosis.nodes if node.declared_gpus == gpus]
    return node


@pytest.mark.rest
def test_declared_gpus_that_do_not_exist_are_reported_as_a_problem_of_their_node(diagnosis):
    (found,) = [finding for what, finding in findings(diagnosis).items() if what.startswith("Ray counts 64 GPUs")]

    assert (found.severity, found.nodes) == ("problem", (node_with(diagnosis, MANY_GPUS).name,))


@pytest.mark.rest
@on_a_cpu_build
def test_a_cpu_build_of_torch_on_a_node_with_gpus_is_reported_as_a_problem(diagnosis):
    torch_build = f"torch {torch.__version__} is a CPU build on a node"
    (found,) = [finding for what, finding in findings(diagnosis).items() if what.startswith(torch_build)]

    assert found.nodes == (node_with(diagnosis, MANY_GPUS).name,)


@pytest.mark.rest
def test_declared_cpus_that_do_not_exist_are_reported_as_a_problem(diagnosis):
    assert any(what.startswith(f"Ray counts {MANY_CPUS} CPUs, but the ") for what in findings(diagnosis))


@pytest.mark.rest
def test_a_different_package_version_is_reported_as_a_problem(diagnosis):
    odd, usual = node_with(diagnosis, 0).name, node_with(diagnosis, MANY_GPUS).name
    (found,) = [finding for what, finding in findings(diagnosis).items() if what.startswith("torch versions differ")]

    assert found.severity == "problem"
    assert f"0.1 on {odd}" in found.what
    assert f"{torch.__version__} on {usual}" in found.what


@pytest.mark.rest
def test_the_environment_of_each_node_is_read(diagnosis):
    assert (node_with(diagnosis, 0).visible_devices, node_with(diagnosis, MANY_GPUS).visible_devices) == ("0", None)
    assert not any(node.failure for node in diagnosis.nodes)
    assert len({node.name for node in diagnosis.nodes}) == 2


@pytest.mark.rest
def test_the_command_exits_with_1_after_problems_and_its_output_fits_80_columns(examined):
    diagnosis, done = examined

    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"Checked 2 nodes of the Ray cluster at {diagnosis.address}.\n")
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.rest
def test_reserved_resources_are_counted_and_a_node_without_a_timely_response_is_reported_as_a_problem():
    with local_ray(num_cpus=2, num_gpus=4):
        holder = ray.util.placement_group([{"CPU": 1, "GPU": 1}])
        ray.get(holder.ready(), timeout=60)
        (node,), late = examine().nodes, examine(timeout_s=0.001)

    assert (node.ray.gpus, node.ray.gpus_in_use) == (4, 1)
    assert [node.failure for node in late.nodes] == ["no answer within 0.001 s"]
    assert not late.is_healthy


@pytest.mark.rest
def test_without_a_ray_cluster_only_this_machine_is_checked_and_ray_is_not_started(isolated_environment, tmp_path):
    """The output of ``sitecustomize`` is not parsed as a result."""
    packages, ray_folder = tmp_path / "packages", tmp_path / "ray"
    packages.mkdir()
    ray_folder.mkdir()
    (packages / "sitecustomize.py").write_text("print('hello')")
    paths = os.pathsep.join([str(packages), isolated_environment.get("PYTHONPATH", "")])

    done = doctor({**isolated_environment, "RAY_TMPDIR": str(ray_folder), "PYTHONPATH": paths})

    assert "Ray is not running on this machine, so only the machine itself was checked.\n" in done.stdout
    assert done.stderr == ""
    assert not list(ray_folder.iterdir())


@pytest.mark.rest
def test_without_a_ray_cluster_the_exit_status_reports_problems(isolated_environment, tmp_path):
    done = doctor({**isolated_environment, "RAY_TMPDIR": str(tmp_path)}, "--json")

    problems = [found for found in json.loads(done.stdout)["findings"] if found["severity"] == "problem"]
    assert done.returncode == (1 if problems else 0)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has GPUs")
def test_on_a_machine_without_gpus_the_doctor_reports_that_trials_run_on_cpus():
    assert "no GPU was found, so trials run on CPUs" in [finding.what for finding in examine("local").findings]


def test_an_address_without_a_ray_cluster_raises_an_error():
    with pytest.raises(ProbeError, match=r"no Ray cluster responds at '127.0.0.1:1'"):
        examine("127.0.0.1:1")


def test_the_timeout_must_be_above_zero():
    with pytest.raises(InvalidResourcesError, match="timeout_s must be above 0 seconds"):
        examine(timeout_s=0)


def test_a_node_without_this_package_is_read_without_importing_a_framework(tmp_path):
    """The task is pickled by value, so it does not need this package."""
    code = (
        "facts = task()\n"
        "assert not {'torch', 'tensorflow', 'jax'} & sys.modules.keys()\n"
        "assert facts.get('gpus') or 'NVML' in facts['nvml_error'], facts\n"
        "print(facts['versions']['torch'])"
    )

    printed = run_without_this_package(node_facts.read_machine, node_facts, code, tmp_path)

    assert printed.strip() == torch.__version__
