"""What is known of accelerators without asking a machine."""

import pytest

from tune_policies.accelerators import _NOMINAL_GB, ACCELERATOR_TYPES, gpu_memory_of_type


def test_sizes_are_of_types_that_ray_knows():
    assert _NOMINAL_GB.keys() - ACCELERATOR_TYPES == set()


@pytest.mark.parametrize(
    ("accelerator_type", "mib_by_driver"),
    [
        *[("K80", 11441), ("P4", 7611), ("P100", 12198), ("V100", 16160), ("T4", 15109), ("A10G", 22731)],
        *[("L4", 23034), ("L40S", 46068), ("A100", 40536), ("H100", 81559), ("H200", 143771)],
    ],
)
def test_a_type_has_no_more_than_what_its_driver_reports(accelerator_type, mib_by_driver):
    """The smallest total, in MiB, that people's `nvidia-smi` shows of such a device."""
    share = gpu_memory_of_type(accelerator_type) / (mib_by_driver * 2**20)

    assert 0.85 < share <= 1


@pytest.mark.parametrize("accelerator_type", [None, "B300", "unheard-of"])
def test_what_is_not_certain_is_not_known(accelerator_type):
    assert gpu_memory_of_type(accelerator_type) is None
