"""The error of a workload whose library does not see the device, where no framework says so."""

from tune_policies.values.errors import ProbeError


def unseen(library: str, device: str) -> ProbeError:
    """Return the error that a library sees no such device, so that nobody takes the CPU's time for the device's."""
    return ProbeError(
        f"{library} sees no {device} in this process, and the CPU is not measured in its place: install a build of "
        "it for the device, check the device's driver, or leave the device out"
    )
