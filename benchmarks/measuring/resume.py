"""Whether a run that was ended can be gone on with."""

from collections.abc import Iterator, Mapping

from tune_policies.errors import InvalidResourcesError

from ..record.run_set import RunSet


def check_same(before: RunSet, now: RunSet) -> None:
    """Check that a run can be gone on with: what was measured and what will be must be comparable.

    Raises:
        InvalidResourcesError: It was asked for something else, or the machine or the versions have changed.
    """
    if before.settings is None:
        raise InvalidResourcesError("the file does not say what was asked for, so it cannot be gone on with: run anew")
    differ = [
        *_differences("", before.settings.model_dump(), now.settings.model_dump() if now.settings else {}),
        *_differences("version of ", before.environment.versions, now.environment.versions),
        *_differences("", _machine(before), _machine(now)),
        *_differences(
            "device ",
            {each.device: each.slot for each in before.devices},
            {each.device: each.slot for each in now.devices},
        ),
        *_differences(
            "type of ",
            {each.device: each.accelerator_type for each in before.devices},
            {each.device: each.accelerator_type for each in now.devices},
        ),
    ]
    if differ:
        raise InvalidResourcesError(
            f"the run cannot be gone on with, as its times could not be compared: {'; '.join(differ)}. "
            "Ask for the same on the same machine, or begin a new file"
        )


def _machine(run_set: RunSet) -> dict[str, object]:
    machine = run_set.environment
    # In any order, as NVML may number them anew.
    gpus = ", ".join(sorted(map(str, machine.gpus))) or "none"
    return {**machine.model_dump(include={"cpu_model", "num_cpus", "usable_cpus", "python"}), "GPUs": gpus}


def _differences(what: str, before: Mapping[str, object], now: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{what}{name} was {before.get(name)}, and is {now.get(name)}"
