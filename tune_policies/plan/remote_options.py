"""The options of ``ray.remote`` that reserve the resources of a worker. Ray is imported only if it is needed."""

from collections.abc import Sequence
from typing import Any, Final, Literal

from tune_policies.cluster.labels import ACCELERATOR_TYPE, merged
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import from_ticks, to_ticks

Reuse = Literal["process", "release", "keep"]
"""Whether the process of a task serves more than one call. See ``TrialPlan.remote_options``."""

_MAX_CALLS: Final[dict[str, dict[str, int]]] = {"process": {}, "release": {"max_calls": 1}, "keep": {"max_calls": 0}}
"""Ray's option ``max_calls`` for each value of ``reuse``: the number of calls after which a task's process ends.

In Ray, 0 means that the number of calls is unlimited. Tasks with GPUs default to 1 (``RemoteFunction.__init__``).
"""


def remote_options_of(slots: Sequence[TrialSlot], reuse: Reuse) -> dict[str, Any]:
    """Return the options of ``ray.remote`` for one worker.

    Args:
        slots: The slots whose workers get the same amounts on different nodes, in order of preference.
        reuse: Whether the process of a task serves more than one call.

    Raises:
        InvalidResourcesError: ``reuse`` is not one of the values.
    """
    if reuse not in _MAX_CALLS:
        raise InvalidResourcesError(f"reuse must be 'process', 'release' or 'keep', got {reuse!r}")
    slot = slots[0]
    worker = slot.worker
    # Ray truncates amounts to 1/10,000, so a fraction such as 1/3 is passed as 0.3333.
    options: dict[str, Any] = {
        "num_cpus": from_ticks(to_ticks(worker.cpus)),
        "num_gpus": from_ticks(to_ticks(worker.gpus)),
    }
    if worker.memory_bytes is not None:
        options["memory"] = worker.memory_bytes
    if worker.custom:
        options["resources"] = {name: from_ticks(to_ticks(amount)) for name, amount in worker.custom.items()}
    alternatives = _alternative_selectors(slots)
    if alternatives:
        # Ray accepts only label selectors as alternatives (``validate_fallback_strategy``), so the device types become
        # labels.
        options["label_selector"], *others = alternatives
        options["fallback_strategy"] = [{"label_selector": selector} for selector in others]
    else:
        if slot.accelerator_type is not None:
            options["accelerator_type"] = slot.accelerator_type
        if slot.label_selector:
            options["label_selector"] = dict(slot.label_selector)
    return options | _MAX_CALLS[reuse]


def _alternative_selectors(slots: Sequence[TrialSlot]) -> list[dict[str, str]]:
    """Return the label selectors of the slots' device types, in order of preference.

    The result is empty if there are fewer than two types, or if Ray has no option for alternatives.
    """
    selectors: list[dict[str, str]] = []
    for slot in slots:
        of_type = {} if slot.accelerator_type is None else {ACCELERATOR_TYPE: slot.accelerator_type}
        selector = merged(slot.label_selector, of_type)
        if selector not in selectors:
            selectors.append(selector)
    # A slot without a selector accepts any node, so there is nothing to prefer.
    if len(selectors) < 2 or {} in selectors:
        return []
    from tune_policies.ray_compat.fallback_strategy import supports_fallback_strategy  # imports Ray

    if supports_fallback_strategy():
        return selectors
    return []
