"""Tests of the doctor's findings for given properties of nodes."""

import pytest
from rich.console import Console

from tests.clusters import GIB
from tune_policies.cli.doctor import diagnosis_view
from tune_policies.probe import node_facts
from tune_policies.probe.doctor.node_checks import (
    Diagnosis,
    Framework,
    Gpu,
    NodeFacts,
    RayCounts,
    ResourceIsolation,
    diagnose,
    is_older,
    minimum_driver,
)

AMD = "AMD-Instinct-MI300X-OAM"
TORCH = Framework(name="torch", version="2.13.0", cuda="12.8")


def gpu(index, *, used_gib=0, is_mig=False):
    return Gpu(
        index=index,
        name="NVIDIA A100-SXM4-80GB",
        uuid=f"GPU-{index}a",
        memory_bytes=80 * GIB,
        used_bytes=int(used_gib * GIB),
        is_mig=is_mig,
    )


def counts(**changes):
    fields = {"cpus": 8, "gpus": 2, "gpus_in_use": 0, "accelerator_type": "A100", "object_store_bytes": GIB}
    return RayCounts(**{**fields, **changes})


def healthy(name="a", **changes):
    """Return a healthy node with two GPUs, with ``changes`` to its fields."""
    fields = {
        "ray": counts(),
        "versions": {"Python": "3.12.1", "torch": "2.13.0"},
        "frameworks": (TORCH,),
        "driver_version": "570.86.15",
        "cuda_version": "12.8",
        "gpus": (gpu(0), gpu(1)),
        "num_nvidia_on_pci": 2,
        "cpu_limits": {"CPU affinity": 8},
        "memory_bytes": 64 * GIB,
        "shm_bytes": 20 * GIB,
    }
    return NodeFacts(name=name, **{**fields, **changes})


def without_driver(**changes):
    no_driver = {"driver_version": None, "cuda_version": None, "gpus": None, "nvml_error": "Driver Not Loaded"}
    return healthy(**{**no_driver, **changes})


def findings_of(*nodes):
    return [f"{found.severity}: {found.what}" for found in diagnose(nodes)]


def test_a_healthy_node_has_no_findings():
    assert findings_of(healthy()) == []


def test_a_machine_without_gpus_gets_a_note():
    machine = without_driver(ray=None, num_nvidia_on_pci=0, frameworks=(Framework(name="torch", version="2.13.0+cpu"),))

    assert findings_of(machine) == ["note: no GPU was found, so trials run on CPUs"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            without_driver(num_nvidia_on_pci=0),
            "problem: Ray counts 2 GPUs that do not exist: the NVIDIA driver does not respond (Driver Not Loaded), "
            "and the PCI bus has no NVIDIA GPU",
        ),
        (
            without_driver(),
            "problem: Ray counts 2 GPUs and the PCI bus has 2 NVIDIA GPUs, but the NVIDIA driver does not "
            "respond (Driver Not Loaded)",
        ),
        (
            without_driver(ray=None),
            "note: the PCI bus has 2 NVIDIA GPUs, but the NVIDIA driver does not respond (Driver Not Loaded)",
        ),
        (healthy(gpus=()), "problem: Ray counts 2 GPUs that do not exist: the NVIDIA driver lists no GPUs"),
        (healthy(ray=counts(gpus=4)), "problem: Ray counts 4 GPUs, but only 2 can be used"),
        (healthy(ray=counts(gpus=1)), "note: Ray counts only 1 of the 2 usable GPUs"),
        (healthy(ray=None, visible_devices="1"), "note: CUDA_VISIBLE_DEVICES='1' hides 1 of 2 GPUs"),
        (
            healthy(ray=counts(gpus=1), visible_devices="GPU-1,7,0"),
            "note: CUDA_VISIBLE_DEVICES='GPU-1,7,0' hides 1 of 2 GPUs",
        ),
        (healthy(ray=None, visible_devices=""), "problem: CUDA_VISIBLE_DEVICES='' hides 2 of 2 GPUs"),
        (
            healthy(frameworks=(Framework(name="torch", version="2.13.0+cpu"),)),
            "problem: torch 2.13.0+cpu is a CPU build on a node with GPUs",
        ),
        (
            healthy(frameworks=(Framework(name="tensorflow", version="2.21.0", cuda="12.5", missing="cuDNN"),)),
            "problem: tensorflow 2.21.0 does not find cuDNN, so it uses CPUs on a node with GPUs",
        ),
        (
            healthy(driver_version="470.82.01", cuda_version="11.4"),
            "problem: torch 2.13.0 is built for CUDA 12.8, which requires NVIDIA driver 525 or newer, but "
            "470.82.01 is installed",
        ),
        (
            healthy(gpus=(gpu(0), gpu(1, is_mig=True))),
            "problem: MIG mode is on for GPU 1: a process uses one MIG device, but plans count the entire memory of a "
            "GPU",
        ),
        (
            healthy(gpus=(gpu(0, used_gib=30), gpu(1))),
            "problem: no GPU is reserved in Ray, but processes use GPU memory: 30 GiB of 80 GiB on GPU 0",
        ),
        (
            healthy(ray=None, gpus=(gpu(0, used_gib=30), gpu(1))),
            "note: processes use GPU memory: 30 GiB of 80 GiB on GPU 0",
        ),
        (
            healthy(cpu_limits={"CPU affinity": 8, "cgroup quota": 3.5}),
            "problem: Ray counts 8 CPUs, but the cgroup quota allows 3.5",
        ),
        (
            healthy(ray=counts(accelerator_type=None)),
            "note: Ray does not recognize the accelerator type of the node's GPUs (NVIDIA A100-SXM4-80GB)",
        ),
        (
            healthy(shm_bytes=64 * 2**20),
            "problem: /dev/shm has 64 MiB, but Ray's object store uses 1 GiB, so Ray puts it on a disk, which is slow",
        ),
        (
            healthy(ray=None, shm_bytes=64 * 2**20, memory_bytes=10 * GIB),
            "problem: /dev/shm has 64 MiB, but Ray's object store uses 3 GiB, so Ray puts it on a disk, which is slow",
        ),
        (NodeFacts(name="a", failure="no answer within 30 s"), "problem: the node was not read: no answer within 30 s"),
    ],
    ids=[
        "declared GPUs that do not exist",
        "GPUs without a driver",
        "undeclared GPUs without a driver",
        "a driver without GPUs",
        "more declared than visible GPUs",
        "fewer declared than visible GPUs",
        "a hidden GPU",
        "an unknown name ends the list of visible devices",
        "all GPUs hidden",
        "a CPU build",
        "a framework without its library",
        "an old driver",
        "MIG mode",
        "memory in use although Ray reserved no GPU",
        "memory in use without Ray",
        "a cgroup quota",
        "no accelerator type",
        "a small /dev/shm",
        "a small /dev/shm without Ray",
        "no answer",
    ],
)
def test_each_problem_is_reported_as_one_finding(node, expected):
    findings = [line for line in findings_of(node) if "CPU build" not in line or line == expected]

    assert findings == [expected]


@pytest.mark.parametrize("accelerator_type", ["M40", "M10", "M4", "M4000", "H100", None])
def test_a_driver_that_does_not_respond_is_a_problem_for_each_nvidia_type(accelerator_type):
    """Apple's types begin with M1 to M4, too."""
    node = without_driver(ray=counts(accelerator_type=accelerator_type))

    assert any("the NVIDIA driver does not respond" in finding for finding in findings_of(node))


@pytest.mark.parametrize(
    "node",
    [
        healthy(ray=counts(gpus_in_use=1), gpus=(gpu(0, used_gib=30), gpu(1))),
        healthy(ray=counts(gpus_in_use=None), gpus=(gpu(0, used_gib=30), gpu(1))),
        healthy(gpus=(gpu(0, used_gib=0.6), gpu(1))),
        healthy(driver_version="470.82.01", cuda_version="12.4"),
        healthy(ray=counts(gpus=7), gpus=(gpu(0, is_mig=True),), visible_devices="MIG-1,MIG-2"),
        without_driver(ray=counts(accelerator_type=AMD), num_nvidia_on_pci=0),
        without_driver(ray=counts(accelerator_type="M4-Max"), num_nvidia_on_pci=0),
        healthy(ray=None, visible_devices="0,1"),
    ],
    ids=[
        "memory of a GPU that Ray reserved",
        "memory with unknown reservations",
        "memory that the driver itself uses",
        "an old driver with the forward compatibility package",
        "selected MIG devices",
        "GPUs of AMD",
        "a GPU of Apple",
        "all GPUs selected without Ray",
    ],
)
def test_a_valid_setup_has_no_findings(node):
    assert findings_of(node) == []


def of_another_vendor(ray="2.60.0", **variables):
    """Return a node with two AMD or Intel GPUs, and with the given environment variables."""
    node = without_driver(num_nvidia_on_pci=0, frameworks=(), has_amd_driver=True, ray=counts(accelerator_type=AMD))
    return node.model_copy(update={"versions": {"ray": ray}, "device_variables": variables})


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            of_another_vendor(ROCR_VISIBLE_DEVICES="1,3"),
            "problem: ROCR_VISIBLE_DEVICES='1,3' is set, but HIP_VISIBLE_DEVICES is not set: Ray raises "
            "a RuntimeError (since Ray 2.45)",
        ),
        (
            of_another_vendor(ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="2,3"),
            "problem: HIP_VISIBLE_DEVICES='2,3' selects hidden GPUs, because its numbers are indices into the 2 GPUs "
            "of ROCR_VISIBLE_DEVICES='2,3'",
        ),
        (
            of_another_vendor(ONEAPI_DEVICE_SELECTOR="level_zero:1,3"),
            "problem: ONEAPI_DEVICE_SELECTOR='level_zero:1,3' is set, but ZE_AFFINITY_MASK is not set: Ray "
            "sets ZE_AFFINITY_MASK in each trial, so both variables apply and a trial may see no GPU (since Ray 2.58)",
        ),
    ],
    ids=["only AMD's former variable", "both AMD variables with the same numbers", "Intel's former variable"],
)
def test_a_variable_of_an_older_ray_version_is_reported_with_the_current_variable(node, expected):
    assert findings_of(node) == [expected]


@pytest.mark.parametrize(
    "node",
    [
        of_another_vendor(ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="0,1"),
        of_another_vendor(HIP_VISIBLE_DEVICES="2,3"),
        of_another_vendor(ONEAPI_DEVICE_SELECTOR="level_zero:gpu"),
        of_another_vendor("2.57.1", ONEAPI_DEVICE_SELECTOR="level_zero:1,3"),
        healthy(device_variables={"ROCR_VISIBLE_DEVICES": "0"}),
    ],
    ids=[
        "consistent AMD variables",
        "AMD's current variable",
        "a back end",
        "Intel's variable with an older Ray",
        "NVIDIA GPUs",
    ],
)
def test_variables_that_the_installed_ray_version_supports_have_no_findings(node):
    assert findings_of(node) == []


def test_a_redacted_report_contains_no_device_variables():
    node = of_another_vendor(ROCR_VISIBLE_DEVICES="GPU-7a")
    diagnosis = Diagnosis(address=None, nodes=(node,), findings=diagnose([node]))

    assert "GPU-7a" in diagnosis.to_json()
    assert "GPU-7a" not in diagnosis.redacted().to_json()


def test_a_cpu_node_beside_gpu_nodes_has_no_findings():
    cpu_node = without_driver(name="b", ray=counts(gpus=0), num_nvidia_on_pci=0, has_amd_driver=True)

    assert findings_of(healthy("a"), cpu_node) == []


def test_equal_findings_on_several_nodes_are_merged_and_list_the_nodes():
    cpu_build = (Framework(name="torch", version="2.13.0+cpu"),)

    findings = diagnose([healthy("c", frameworks=cpu_build), healthy("b"), healthy("a", frameworks=cpu_build)])

    assert [finding.nodes for finding in findings] == [("a", "c")]


def test_the_report_lists_the_first_of_many_nodes_within_80_columns():
    nodes = tuple(healthy(f"10.0.0.{i}", ray=counts(gpus=4 if i else 2)) for i in range(8))
    console = Console(width=80)

    with console.capture() as capture:
        console.print(diagnosis_view(Diagnosis(address="10.0.0.1:6379", nodes=nodes, findings=diagnose(nodes))))

    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert lines[0] == "Checked 8 nodes of the Ray cluster at 10.0.0.1:6379."
    assert lines[1] == "problem  7 nodes (10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5 and 2 more):"
    assert lines[2].strip() == "Ray counts 4 GPUs, but only 2 can be used"
    assert lines[-1] == "1 problem"


def test_problems_come_before_notes():
    note, problem = healthy("a", ray=counts(gpus=1)), healthy("b", ray=counts(gpus=4))

    assert [line.partition(":")[0] for line in findings_of(note, problem)] == ["problem", "note"]


def test_different_versions_are_reported_for_the_nodes_in_the_minority():
    odd = healthy("c", versions={"Python": "3.12.1"}, driver_version="580.65.06")

    torch, driver = diagnose([healthy("a"), healthy("b"), odd])

    assert (torch.severity, torch.nodes) == ("problem", ("c",))
    assert torch.what == "torch versions differ between nodes: 2.13.0 on a, b; not installed on c"
    assert driver.severity == "note"
    assert driver.what == "NVIDIA driver versions differ between nodes: 570.86.15 on a, b; 580.65.06 on c"


def test_the_versions_of_a_node_that_was_not_read_are_not_compared():
    assert findings_of(healthy("a"), NodeFacts(name="b", failure="gone")) == ["problem: the node was not read: gone"]


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [("13.0", "580"), ("12", "525"), ("12.8", "525"), ("11.8", "450"), ("10.2.89", "440.33"), ("9.2", None)],
)
def test_each_cuda_version_has_a_minimum_driver(cuda, driver):
    assert minimum_driver(cuda) == driver


@pytest.mark.parametrize(
    ("version", "than", "older"),
    [("525.60.13", "525", False), ("470.82.01", "525", True), ("440.9", "440.33", True), ("1000.1", "580", False)],
)
def test_versions_are_compared_as_numbers(version, than, older):
    assert is_older(version, than) is older


def test_nodes_on_which_ray_isolates_its_own_processes_are_reported():
    isolated = healthy("b", isolation=ResourceIsolation(cgroup_path="/sys/fs/cgroup", system_memory_bytes=2 * GIB))

    (found,) = diagnose((healthy("a"), isolated))

    assert (found.severity, found.nodes) == ("note", ("b",))
    assert found.what == "Ray's own processes have a cgroup (/sys/fs/cgroup), with 2 GiB of host memory"
    assert found.hint.endswith("without a limit for each trial, so set memory in the policy")


def write_process(root, pid, command, parent):
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("\0".join([*command, ""]))
    (folder / "status").write_text(f"Name:\tx\nPPid:\t{parent}\n")


RAYLET = ["/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=/tmp/raylet"]
ISOLATED = ["--enable-resource-isolation", "--cgroup-path=/sys/fs/cgroup", "--system-reserved-memory-bytes=1024"]


@pytest.mark.parametrize(
    ("command", "isolation"),
    [
        ([*RAYLET, *ISOLATED], {"cgroup_path": "/sys/fs/cgroup", "system_memory_bytes": 1024}),
        (RAYLET, None),
        (["/usr/bin/bash", "--enable-resource-isolation"], None),
    ],
)
def test_the_isolation_of_a_node_is_read_from_the_command_of_its_raylet(tmp_path, command, isolation):
    write_process(tmp_path, 7, command, 1)
    write_process(tmp_path, 8, ["python", "worker.py"], 7)

    assert node_facts._isolation(8, str(tmp_path)) == isolation
