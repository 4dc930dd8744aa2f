"""Tests of the table of accelerator families and of the pages that show it."""

import re
from pathlib import Path

import pytest

from tune_policies import InvalidResourcesError
from tune_policies.cluster.accelerators import (
    ACCELERATOR_TYPES,
    FAMILIES,
    GPU_VISIBILITY_VARIABLES,
    check_accelerator_type,
    check_device_amount,
    check_device_resource,
    check_type_of_resource,
    families_of,
    gpu_memory_of_type,
    may_be_nvidia,
)
from tune_policies.cluster.gpu_sizes import GPU_TOTALS

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "accelerators.md"


def row(family):
    variable = f"`{family.visibility_variable}`" if family.visibility_variable else "none"
    limits = ", ".join(family.memory_limits) or "none"
    cells = (str(family), family.support, f"`{family.resource}`", variable, family.allowed, limits, family.detection)
    return f"| {' | '.join(cells)} |"


def start(family):
    amount = "--num-gpus=2" if family.resource == "GPU" else f"""--resources='{{"{family.resource}": 2}}'"""
    return f"| {family} | `{family.visibility_variable}=1,3 ray start {amount}` |"


def test_the_accelerators_page_contains_the_table_of_families():
    lines = PAGE.read_text().splitlines()

    assert [line for line in lines if line in {row(family) for family in FAMILIES}] == [*map(row, FAMILIES)]


def test_the_accelerators_page_contains_the_command_to_start_a_node_with_some_devices_of_each_family():
    lines = PAGE.read_text().splitlines()

    assert [line for line in lines if "=1,3 ray start" in line and line.startswith("|")] == [
        start(family) for family in FAMILIES if family.visibility_variable
    ]


def less(margin):
    return f" less {100 * margin:g} %" if margin else ""


def test_the_policies_page_lists_the_memory_of_each_known_gpu_type():
    page = (PAGE.parents[1] / "reference" / "policies.md").read_text()
    rows = [
        f"| {name} | {total.mib:,}{less(total.margin)} | {total.source} | {total.variants} |"
        for name, total in GPU_TOTALS.items()
    ]

    assert "\n".join(rows) in page


def test_no_device_type_belongs_to_two_families():
    assert sum(len(family.types) for family in FAMILIES) == len(ACCELERATOR_TYPES)


def test_nvidia_amd_and_intel_gpus_have_a_visibility_variable():
    assert GPU_VISIBILITY_VARIABLES == ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


def test_all_gpu_families_allow_the_same_amounts():
    """A resource request does not contain the GPU family, so the check of an amount must be valid for all families."""
    assert len({(family.can_be_split, family.amounts) for family in FAMILIES if family.resource == "GPU"}) == 1


@pytest.mark.parametrize(
    ("amount", "resource"), [(0.25, "GPU"), (2, "GPU"), (0.5, "NPU"), (3, "HPU"), (8, "TPU"), (1, "TTNPU")]
)
def test_an_amount_that_ray_assigns_is_valid(amount, resource):
    assert check_device_amount(amount, resource) == amount


@pytest.mark.parametrize(
    ("amount", "resource", "message"),
    [
        (0.5, "HPU", "amount=0.5 of HPU is not possible: valid amounts per worker are whole numbers. Request 1$"),
        (2.5, "neuron_cores", "whole numbers. Request 2 or 3$"),
        (3, "TPU", "amount=3 of TPU is not possible: valid amounts per worker are 1, 2, 4 or 8. Request 2 or 4$"),
        (0.5, "TPU", "Request 1$"),
        (16, "TPU", "Request 8$"),
        (
            1.5,
            "NPU",
            "amount=1.5 of NPU is not possible: valid amounts per worker are fractions below 1 and whole numbers. "
            "Request 1 or 2$",
        ),
        (0, "GPU", "Request 1$"),
    ],
)
def test_an_impossible_amount_raises_an_error_with_the_nearest_amounts(amount, resource, message):
    with pytest.raises(InvalidResourcesError, match=message):
        check_device_amount(amount, resource)


@pytest.mark.parametrize(
    ("check", "name", "message"),
    [
        (check_accelerator_type, "tpu-v6", "unknown accelerator type 'tpu-v6'; did you mean 'TPU-V6E'?"),
        (check_accelerator_type, "RTX3090", "unknown accelerator type 'RTX3090'; did you mean 'GeForce-RTX-3090'?"),
        (check_accelerator_type, "xyz", "unknown accelerator type 'xyz'. Use the type that `tune-policies probe`"),
        (
            check_device_resource,
            "neuron_core",
            "unknown accelerator resource 'neuron_core'; did you mean 'neuron_cores'",
        ),
        (check_device_resource, "tpu", "did you mean 'TPU'"),
        (
            check_device_resource,
            "abacus",
            "unknown accelerator resource 'abacus'. Use one of FURIOSA, GPU, HPU, MBLT, NPU",
        ),
    ],
)
def test_an_unknown_name_raises_an_error_with_the_nearest_name(check, name, message):
    with pytest.raises(InvalidResourcesError) as caught:
        check(name)

    assert message in str(caught.value)


def test_a_device_type_of_another_resource_raises_an_error_with_the_valid_types():
    with pytest.raises(
        InvalidResourcesError, match=r"'A100' is not a type of resource 'NPU'\. Use one of Ascend910B, Ascend"
    ):
        check_type_of_resource("A100", "NPU")
    with pytest.raises(
        InvalidResourcesError, match=r"'A100' is not a type of resource 'RBLN'\. Ray defines no types of this resource"
    ):
        check_type_of_resource("A100", "RBLN")


WITHOUT_TOTAL = {"AMD-Instinct-MI300A", "AMD-Radeon-R9-200-HD-7900", "AMD-Radeon-HD-7900"}
"""GPU types that share their memory with the CPU or exist with several memory sizes, except Apple's GPUs."""


def test_every_gpu_type_with_one_memory_size_has_a_memory_total():
    types = {name for family in families_of("GPU") if family.vendor != "Apple" for name in family.types}

    assert GPU_TOTALS.keys() >= types - WITHOUT_TOTAL
    assert GPU_TOTALS.keys().isdisjoint(WITHOUT_TOTAL)


def test_each_memory_total_has_a_source():
    assert all(total.source for total in GPU_TOTALS.values())


@pytest.mark.parametrize(
    ("accelerator_type", "mib_by_driver"),
    [
        *[("K80", 11439), ("P4", 7611), ("P100", 12198), ("V100", 16130), ("T4", 15079), ("A10G", 22731)],
        *[("L4", 23034), ("L40S", 46068), ("A100", 40536), ("A100-80G", 80994), ("H100", 81559), ("H200", 143771)],
        *[("AMD-Instinct-MI210", 65520), ("AMD-Instinct-MI355X-OAM", 294896)],
    ],
)
def test_the_memory_of_a_type_is_the_smallest_total_that_its_driver_reports(accelerator_type, mib_by_driver):
    assert gpu_memory_of_type(accelerator_type) == mib_by_driver * 2**20


def test_the_memory_of_a_type_without_a_published_total_is_its_nominal_size_less_the_margin():
    assert gpu_memory_of_type("AMD-Instinct-MI100") == int(32 * 2**30 * 0.99)


@pytest.mark.parametrize(
    ("accelerator_type", "vendor_is_nvidia"),
    [
        *[("GeForce-RTX-4090", True), ("RTX-A6000", True), ("TITAN-X-(Pascal)", True), ("M40", True), ("GB10", True)],
        *[("AMD-Radeon-RX-7900-XTX", False), ("Intel-GPU-A770-Graphics", False), ("M3-Max", False), (None, True)],
    ],
)
def test_the_vendor_of_a_gpu_follows_from_the_form_of_its_type(accelerator_type, vendor_is_nvidia):
    assert may_be_nvidia(accelerator_type) == vendor_is_nvidia


def test_the_type_of_another_resource_is_refused_by_its_form():
    for name, resource in [("TPU-V9", "GPU"), ("Ascend310P1", "GPU"), ("GeForce-RTX-4090", "NPU"), ("A40", "TPU")]:
        with pytest.raises(InvalidResourcesError, match="is not a type of resource"):
            check_type_of_resource(name, resource)


@pytest.mark.parametrize("accelerator_type", [None, "M3-Max", "AMD-Instinct-MI300A", "unheard-of"])
def test_the_memory_of_a_type_without_a_certain_total_is_unknown(accelerator_type):
    assert gpu_memory_of_type(accelerator_type) is None


PRODUCTS = {
    "NVIDIA A100-SXM4-80GB": "A100",
    "NVIDIA-A100-SXM4-40GB": "A100",
    "NVIDIA H100 80GB HBM3": "H100",
    "nvidia-h100-mega-80gb": "H100",
    "NVIDIA L40S": "L40S",
    "nvidia-l4": "L4",
    "nvidia-tesla-t4": "T4",
    "Tesla V100-SXM2-16GB": "V100",
    "Quadro RTX 6000": "RTX-6000",
    "NVIDIA RTX 6000 Ada Generation": "RTX-6000",
    "RTX 4090": "GeForce-RTX-4090",
    "rtx4090": "GeForce-RTX-4090",
    "gtx1080ti": "GeForce-GTX-1080-Ti",
    "GeForce RTX 2080 Ti": "GeForce-RTX-2080-Ti",
    "NVIDIA-GeForce-RTX-3080-Ti": "GeForce-RTX-3080-Ti",
    "A100 80GB": "A100-80G",
    "A100-80GB": "A100-80G",
    "A100-40GB": "A100-40G",
    "A100-40": "A100-40G",
    "A100-SXM4-80GB": "A100-80G",
    "H100-80GB": "H100",
    "L4-24GB": "L4",
    "AMD Instinct MI300X": "AMD-Instinct-MI300X-OAM",
    "Intel(R) Arc(TM) A770 Graphics": "Intel-GPU-A770-Graphics",
}


@pytest.mark.parametrize(("product", "name"), PRODUCTS.items())
def test_the_error_for_the_name_of_a_product_or_a_label_contains_the_type(product, name):
    with pytest.raises(InvalidResourcesError, match=rf"did you mean '{re.escape(name)}'\?"):
        check_accelerator_type(product)
