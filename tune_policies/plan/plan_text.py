"""The text of a plan: the headline, the slots, the nodes to add, the reasons, and the idle resources.

The tables for notebooks and terminals are in ``plan_view.py``.
"""

from collections.abc import Iterator
from typing import Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.default_overhead import safe_overhead_bytes
from tune_policies.plan.idle import idle_heading, idle_to_show
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted

_MOST_SHOWN: Final = 8
"""The maximum number of slot types that are listed individually."""

_SIMULATED: Final = "simulated GPUs: memory limits are not enforced"


def plan_text(plan: TrialPlan, capacity: ClusterCapacity | None) -> str:
    """Return the plan as text. With ``capacity``, the text also lists the idle resources.

    Raises:
        InvalidResourcesError: The plan was made for another cluster.
    """
    lines = [headline(plan), *(f"  {text}" for text in _slot_lines(plan))]
    if plan.nodes_to_add:
        lines.append(f"  {about_nodes_to_add(plan)}")
    lines += (f"  - {reason}" for reason in all_reasons(plan))
    if capacity is None:
        return "\n".join(map(one_line, lines))
    idle_lines = _about_idle_resources(plan, capacity)
    text = PlanText("\n".join(map(one_line, (*lines, *idle_lines))))
    text.plan, text.idle_lines = plan, idle_lines
    return text


class PlanText(str):
    """The text of a plan on a cluster. A notebook shows the table of the plan instead, and the idle resources."""

    plan: TrialPlan
    idle_lines: tuple[str, ...]

    def _repr_html_(self) -> str:
        from tune_policies.plan.plan_view import plan_view  # notebooks only
        from tune_policies.values.html import to_html

        return to_html(plan_view(self.plan, self.idle_lines))


def _about_idle_resources(plan: TrialPlan, capacity: ClusterCapacity) -> tuple[str, ...]:
    """Return lines about what stays idle while all slots of the plan are in use."""
    left = idle_to_show(capacity, plan)
    heading = idle_heading(plan, left)
    if left:
        heading += ":"
    return (heading, *(f"  {part}" for part in left))


def headline(plan: TrialPlan) -> str:
    """Return the number of concurrent trials, the limit on this number, and why GPUs are not used."""
    least, most = plan.min_concurrent_trials, plan.max_concurrent_trials
    count = f"{counted(most, 'trial')} at once"
    if plan.by_config is not None and plan.by_config.condition:
        count += f", {plan.by_config.condition}"
        if least < most:
            count = f"{least} to {count}"
    if plan.why_no_gpus:
        unused = f"GPUs are not used, because {plan.why_no_gpus}"
        return one_line(f"{count} on CPUs, limited by {plan.limited_by}. {unused}")
    return one_line(f"{count}, limited by {plan.limited_by}")


def _slot_lines(plan: TrialPlan) -> Iterator[str]:
    rows = slot_rows(plan)
    if plan.by_config is not None and plan.by_config.varies:
        for text, number in rows.items():
            yield f"at most {number} with {text}"
    elif len(rows) > 1:
        for text, number in list(rows.items())[:_MOST_SHOWN]:
            yield f"{number} with {text}"
        rest = list(rows.values())[_MOST_SHOWN:]
        if rest:
            yield f"{sum(rest)} in {counted(len(rest), 'further slot type')}"
    else:
        yield f"each trial: {plan.slots[0]}"


def slot_rows(plan: TrialPlan) -> dict[str, int]:
    """Return the text about the slots of each type, and their number."""
    rows: dict[str, int] = {}
    for slot in _all_slots(plan):
        # Slots on nodes of different shapes can reserve the same resources, and then share a row.
        text = str(slot)
        if slot.speed is not None:
            text += f" (speed {slot.speed:g})"
        if plan.by_config is None:
            rows[text] = rows.get(text, 0) + slot.max_concurrent_trials
            continue
        configs = plan.by_config.configs_of(slot)
        if configs and text not in rows:
            text += f" for {configs}"
        # The slots of different configs use the same resources.
        rows[text] = max(rows.get(text, 0), slot.max_concurrent_trials)
    return rows


def about_nodes_to_add(plan: TrialPlan) -> str:
    """Return a sentence about the nodes that the autoscaler must add first, or an empty string."""
    added = ", ".join(f"{count} {name}" for name, count in sorted(plan.nodes_to_add.items()))
    if added:
        return one_line(f"nodes that the autoscaler must add first: {added}")
    return ""


def all_reasons(plan: TrialPlan) -> tuple[str, ...]:
    """Return sentences about the GPU memory that tensors can use, followed by the reasons of the plan."""
    simulated = [_SIMULATED] if any(slot.has_simulated_gpus for slot in _all_slots(plan)) else []
    return tuple(map(one_line, (*simulated, *_for_tensors(plan), *plan.reasons)))


def _for_tensors(plan: TrialPlan) -> Iterator[str]:
    """For each GPU fraction, yield a sentence about the memory that remains for tensors after the overhead."""
    shares = {slot.gpu_memory_bytes: slot.gpu_overhead_bytes for slot in _all_slots(plan) if slot.has_gpu_fraction}
    for share, overhead in sorted((size, overhead) for size, overhead in shares.items() if size is not None):
        of_share = f"of {format_bytes(share)} of GPU memory"
        if overhead is None:
            in_torch, in_tensorflow = (
                format_bytes(max(0, share - safe_overhead_bytes(name))) for name in ("torch", "tensorflow")
            )
            yield (
                f"tensors can use {in_torch} {of_share} in PyTorch, JAX and CuPy, and {in_tensorflow} in "
                "TensorFlow; the rest is overhead"
            )
        else:
            left = format_bytes(max(0, share - overhead))
            yield f"tensors can use {left} {of_share}; the overhead is {format_bytes(overhead)}"


def _all_slots(plan: TrialPlan) -> tuple[TrialSlot, ...]:
    """Return the slots that trials can get, including those of different configs that use the same resources."""
    if plan.by_config is None:
        return plan.slots
    return plan.by_config.slots
