"""A policy that runs as many trials on each GPU as its memory allows. You specify or measure the memory of a trial."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Final, Self

from pydantic import model_validator

from tune_policies.cluster.accelerators import may_be_nvidia
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.gpu_sizes import MOST_RESERVED
from tune_policies.cluster.node import NodeCapacity, NodeGroup
from tune_policies.placement.count_trials import count_trials, holds, workers_on_node
from tune_policies.placement.request import DRIVER_BYTES, Limit, Request
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.gpu_memory_profile import GpuMemoryProfile
from tune_policies.plan.headroom import HEADROOM, Headroom, with_headroom
from tune_policies.plan.infeasible_request import in_context, infeasible
from tune_policies.plan.plan_notes import describe_gpus, gpu_memory_hint, how_to_state_gpu_memory
from tune_policies.plan.slots_by_config import SlotsByProfile
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.default_cpus import nodes_with_cpus
from tune_policies.policies.equal_fractions import equal_device_fraction
from tune_policies.policies.gpu_selection import (
    GpuTypesPolicy,
    about_listed_nodes,
    gpu_memory_of,
    gpus_of_type,
    gpus_with_memory,
    plan_gpus,
    select_gpus,
    selections_of,
    sized_for,
    why_not_distinct,
    without_duplicates,
)
from tune_policies.policies.slots_by_node_type import Selection, with_own_slots
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    Memory,
    PositiveCount,
    Resources,
    amount_of,
    fewest_workers,
    format_amount,
    from_ticks,
)
from tune_policies.values.units import MOST_BYTES, format_bytes, format_request, parse_bytes
from tune_policies.values.wording import counted, shorten_names

_MOST_SIZES: Final = 12
"""The maximum number of slot sizes. The policy computes a plan for each size.

With 12 sizes from 1 to 80 GiB, an average trial gets about a sixth more memory than it needs.
"""

_MOST_SELECTIONS: Final = 32
"""The maximum number of larger device sizes to compare. Sizes with room for the most trials are preferred."""

_LEAST_GAP: Final = 1.1
"""No size is added between two sizes that differ by less than this factor."""

_MOST_NEAR_MISSES: Final = 8
"""The maximum number of workers on a GPU beside which a plan mentions one more worker."""

_MOST_NAMED: Final = 8
"""The number of measured configs above which a plan lists only the smallest and the largest config."""


class GpuMemoryPolicy(GpuTypesPolicy):
    """Runs as many workers on each GPU as fit in its memory.

    For example, 2 workers of 6 GiB each fit on a 16 GiB GPU, and 13 on an 80 GiB GPU. If GPUs differ, each GPU size has
    its own slots with its own GPU fraction.

    With Train workers or ``same_for_all``, all trials get the same fraction. Then the policy compares selections of
    GPUs: all GPUs, the larger GPUs, and the GPUs of each type. The smallest GPU of a selection determines the fraction.
    The policy uses the selection on which the most trials run at once, and the plan lists the unused GPUs.

    With ``profile`` instead of ``gpu_memory``, each trial gets the memory that its config needs. See
    ``TrialPlan.by_config``.

    Attributes:
        gpu_memory: The total GPU memory that one worker needs, including the overhead of its framework: bytes, or a
            string such as ``"6GiB"``. Set either this field or ``profile``.
        profile: The measured GPU memory of each config.
        headroom: The memory that a worker gets in addition to its measured need, as a fraction of this need: 0.1 adds a
            tenth.
        memory: The host memory that each worker reserves: bytes, or a string such as ``"4GiB"``. If ``None``, workers
            reserve the host memory that the profile contains, if any.
        max_trials_per_gpu: The maximum number of workers on a GPU, even if its memory has room for more.
        cpus: The number of CPUs of each worker. If ``None``, the CPUs of a node are divided equally among its GPU
            slots. If all trials must get the same resources, the node with the fewest CPUs per slot determines the
            number, and nodes without CPUs are not used, unless no trial fits the nodes with CPUs. Otherwise, trials on
            nodes without CPUs reserve no CPU.
        accelerator_type: The device type to use, such as ``"A100"``, or ``None`` for any type. If several are set,
            such as ``("H100", "A100")``, the policy uses the first type with room for ``min_trials`` trials.
        min_trials: The minimum number of concurrent trials. If fewer trials fit, the policy tries the next type.
        custom: The custom Ray resources of each worker, by name.
        same_for_all: Whether all trials get the same resources on every node. Otherwise, the CPUs and the GPU memory
            of a trial depend on its node.
        num_workers: The number of Train workers in a trial, or 0 if the trial itself trains. With ``(2, 8)``, a trial
            has 2 to 8 workers, depending on the free resources.

    Raises:
        InvalidResourcesError: A field is invalid, or not exactly one of ``gpu_memory`` and ``profile`` is set.
    """

    gpu_memory: Memory | None = None
    profile: GpuMemoryProfile | None = None
    headroom: Headroom = HEADROOM
    max_trials_per_gpu: PositiveCount | None = None

    @model_validator(mode="after")
    def _must_have_one_size(self) -> Self:
        if (self.gpu_memory is None) == (self.profile is None):
            raise InvalidResourcesError(
                "GpuMemoryPolicy requires either gpu_memory, such as '6GiB', or a measured profile. Set exactly one"
            )
        return self

    @property
    def depends_on_config(self) -> bool:
        """Whether a profile determines the resources of each config."""
        return self.profile is not None

    def _with_rounded_memory(self, capacity: ClusterCapacity) -> ClusterCapacity:
        """Round the host memory of the nodes, unless a profile determines the host memory of a worker later."""
        is_measured = self.profile is not None and self.profile.host_memory_bytes is not None
        if self.memory is None and is_measured:
            return capacity
        return super()._with_rounded_memory(capacity)

    def _plan_on_type(self, capacity: ClusterCapacity, accelerator_type: str | None) -> TrialPlan:
        if self.profile is not None:
            measured = self._with_measured_memory(self.profile, capacity, accelerator_type)
            capacity = measured._with_rounded_memory(capacity)
            return measured._plan_by_profile(self.profile, capacity, measured._usable(capacity, accelerator_type))
        usable = self._usable(capacity, accelerator_type)
        needed = int(self.gpu_memory or 0)
        plan, _ = self._best(capacity, usable, needed)
        if self.same_for_all:
            return plan
        return self._with_own_slots(plan, capacity, self._with_room(capacity, accelerator_type), needed)

    def _with_own_slots(self, plan: TrialPlan, capacity: ClusterCapacity, usable: Selection, needed: int) -> TrialPlan:
        """Return a plan with as many workers on each GPU as fit in its memory, or ``plan`` if this is not better."""
        # GPUs of different sizes with room for equally many workers share a slot type: Ray sees only their fraction.
        groups_with: dict[int, list[NodeGroup]] = {}
        for group in usable.groups:
            fit = gpu_memory_of(group.node) // needed
            if fit:
                share = equal_device_fraction(min(fit, self.max_trials_per_gpu or fit), group.node.resources.gpus)
                groups_with.setdefault(share, []).append(group)
        nodes = [
            select_gpus(capacity, groups, usable.accelerator_type)._replace(share_ticks=share)
            for share, groups in sorted(groups_with.items())
        ]
        on_each = ", ".join(
            f"{TICKS // alike.share_ticks} on a GPU of {_to_text(alike.memory_bytes, needed)}"
            for alike in nodes
            if alike.memory_bytes
        )
        capped = f", with max_trials_per_gpu={self.max_trials_per_gpu}" if self.max_trials_per_gpu else ""
        request, choose_cpus = self._with_gpus(1), self.cpus is None
        chosen = Selection(tuple(group for alike in nodes for group in alike.groups))
        reasons = [
            f"{format_bytes(needed)} per {request.unit}: {on_each}{capped}",
            *self._near_misses([alike.memory_bytes for alike in nodes if alike.memory_bytes], needed),
            *self._left_out(capacity, usable, chosen),
            *about_listed_nodes(nodes),
        ]
        return with_own_slots(plan, capacity, request, nodes, resource="GPU", choose_cpus=choose_cpus, reasons=reasons)

    def _with_measured_memory(
        self, profile: GpuMemoryProfile, capacity: ClusterCapacity, accelerator_type: str | None
    ) -> Self:
        """Return a copy that reserves the measured host memory and a headroom, unless the user set the host memory.

        The headroom is limited so that a worker and a Train driver fit on the largest node.
        """
        needed = profile.host_memory_bytes
        if self.memory is not None or needed is None:
            return self
        there = [node.resources.memory_bytes for node, _ in self._usable(capacity, accelerator_type).groups]
        known = [memory for memory in there if memory is not None]
        most = MOST_BYTES
        if len(known) == len(there):
            most = max(known, default=0) - DRIVER_BYTES
        # The headroom must not make a trial infeasible whose measured memory fits on a node.
        return self.model_copy(update={"memory": min(with_headroom(needed, self.headroom), max(needed, most))})

    def _plan_by_profile(self, profile: GpuMemoryProfile, capacity: ClusterCapacity, usable: Selection) -> TrialPlan:
        """Return the plan with slots of several sizes for the measured configs. The first slot fits all of them.

        Raises:
            InfeasibleRequestError: The largest config that did not run out of memory fits no device.
        """
        largest_device = max((gpu_memory_of(node) for node, _ in usable.groups), default=0)
        gpu_models = _models_of(capacity.nodes_of(usable.groups))
        overhead = profile.overhead_bytes(gpu_models)
        held = _needs_of_successful(profile, overhead)
        not_held = [measured.total_bytes for measured in profile.measurements if measured.ran_out]
        if not held:  # all configs ran out of memory, so only a larger device may be enough
            held = [max(max(not_held) + 1, largest_device)]
        # The headroom must not increase the need of a config above the memory of the largest device.
        wanted = sorted({min(with_headroom(needed, self.headroom), max(needed, largest_device)) for needed in held})
        plan, best = self._best(capacity, usable, wanted[-1])
        # Each size is tried on the best GPUs for the largest config, for the smallest config, and for an unknown
        # config.
        selections = list(without_duplicates([best, *self._other_selections(capacity, usable, wanted[0])]))
        overheads = {"gpu_overhead_bytes": overhead, "measured_with": profile.versions}
        first = plan.slots[0].model_copy(update=overheads)
        slots = {first.gpu_memory_bytes or 0: first}
        for size in _spread(wanted, largest_device):
            slot = self._most_slots(capacity, usable, selections, size)
            if slot is not None:
                slots.setdefault(slot.gpu_memory_bytes or 0, slot.model_copy(update=overheads))
        sized = tuple(slot for _, slot in sorted(slots.items()))
        by_config = SlotsByProfile(profile=profile, headroom=self.headroom, slots=sized)
        ran_out: tuple[str, ...] = ()
        if not_held:
            ran_out = (
                f"the slot sizes do not depend on {counted(len(not_held), 'config')} that ran out of memory on a GPU "
                f"of {format_bytes(max(not_held))}",
            )
        share = "a whole GPU"
        if sized[-1].has_gpu_fraction:
            per_unit = f"{format_amount(sized[-1].worker.gpus)} GPU per {self._with_gpus(1).unit}"
            share = f"{per_unit}, the largest possible fraction"
        reasons = (
            _describe_profile(profile, held, self.headroom),
            *ran_out,
            *_describe_slots(by_config),
            *about_listed_nodes(selections),
            *profile.reasons,
            *_describe_extrapolation(profile, gpu_models, overhead),
            *self._about_host_memory(profile),
            f"a config without a measurement or formula gets {share}",
            *(f"for the largest: {reason}" for reason in plan.reasons),
        )
        return plan.model_copy(update={"slots": (first,), "by_config": by_config, "reasons": reasons})

    def _other_selections(self, capacity: ClusterCapacity, usable: Selection, smallest: int) -> Iterator[Selection]:
        """Yield the GPUs for the smallest config, and for configs of unknown size, which need the largest GPU."""
        sizes = {gpu_memory_of(node) for node, _ in usable.groups}
        if len(sizes) < 2:
            return
        for needed in (smallest, max(sizes)):
            with suppress(InfeasibleRequestError):  # too few devices have this size
                yield self._best(capacity, usable, needed)[1]

    def _most_slots(
        self, capacity: ClusterCapacity, usable: Selection, selections: Sequence[Selection], size: int
    ) -> TrialSlot | None:
        """Return the slot for a size with the most concurrent trials, or ``None`` if the size fits no GPU."""
        fitting = []
        for choice in selections:
            with suppress(InfeasibleRequestError):  # the choice has too few whole GPUs with enough CPUs
                if choice.memory_bytes >= size:
                    fitting.append(self._plan_choice(capacity, usable, choice, size).slots[0])
        return max(fitting, key=lambda slot: slot.max_concurrent_trials, default=None)

    def _about_host_memory(self, profile: GpuMemoryProfile) -> Iterator[str]:
        """Yield a sentence about the reserved and the measured host memory, if both are known."""
        if self.memory is not None and profile.host_memory_bytes is not None:
            yield (
                f"{format_bytes(int(self.memory))} of host memory per {self._with_gpus(1).unit}; the measured peak was "
                f"{format_bytes(profile.host_memory_bytes)}"
            )

    def _best(self, capacity: ClusterCapacity, usable: Selection, needed: int) -> tuple[TrialPlan, Selection]:
        """Return the plan with the most trials for workers with ``needed`` bytes of GPU memory, and the GPUs to use."""
        choices = list(selections_of(capacity, usable, needed))
        if not choices:
            raise self._infeasible(capacity, usable, needed)
        # A selection without the smaller devices can have room for more workers. Building it visits every node, so it
        # is built only if its upper bound is high enough.
        bounded: list[tuple[int, Selection | int]] = [
            (self._most(_num_devices(choice.groups), choice.memory_bytes // needed), choice) for choice in choices
        ]
        larger = ((self._most(number, size // needed), size) for size, number in _larger_sizes(usable.groups, needed))
        bounded += nlargest(_MOST_SELECTIONS, larger)
        found: list[tuple[tuple[object, ...], Selection]] = []
        most = 1
        for bound, choice_or_size in sorted(bounded, key=itemgetter(0), reverse=True):
            if bound < most:
                break
            if isinstance(choice_or_size, Selection):
                choice = choice_or_size
            else:
                choice = gpus_with_memory(capacity, usable, choice_or_size)
            if not choice.groups:
                continue
            share = self._share(choice, needed)
            request, _ = sized_for(choice, self._with_gpus(from_ticks(share)), choose_cpus=self.cpus is None)
            groups = choice.groups if choice.label_selector else capacity.groups
            count = count_trials(groups, request)
            if count >= most:
                most = count
                # On a tie, prefer the larger fraction, then the simplest selection: all devices, one type by name, a
                # label selector.
                tie = (-share, bool(choice.label_selector), choice.accelerator_type or "", choice.memory_bytes)
                found.append(((-count, *tie), choice))
        best = choices[0]  # if no trial fits, its plan raises the error
        if found:
            _, best = min(found, key=itemgetter(0))
        return self._plan_choice(capacity, usable, best, needed), best

    def _most(self, num_devices: int, fit: int) -> int:
        """Return an upper bound for the number of trials on devices with room for ``fit`` workers each."""
        return num_devices * min(fit, self.max_trials_per_gpu or fit) // max(1, fewest_workers(self.num_workers))

    def _share(self, choice: Selection, needed: int) -> int:
        """Return the smallest GPU fraction, in ticks, that has ``needed`` bytes on the smallest chosen device."""
        fit = choice.memory_bytes // needed
        most_devices = max(node.resources.gpus for node, _ in choice.groups)
        return equal_device_fraction(min(fit, self.max_trials_per_gpu or fit), most_devices)

    def _with_room(self, capacity: ClusterCapacity, accelerator_type: str | None) -> Selection:
        """Return the GPUs of nodes with enough CPUs and host memory for a worker."""
        beside = Resources(cpus=self.cpus or 0, memory_bytes=self.memory)
        return gpus_of_type(capacity, accelerator_type).where(lambda node: holds(node, beside))

    def _usable(self, capacity: ClusterCapacity, accelerator_type: str | None) -> Selection:
        gpus = self._with_room(capacity, accelerator_type)
        if self.cpus is None:
            return gpus._replace(groups=nodes_with_cpus(gpus.groups, "GPU"))
        return gpus

    def _plan_choice(self, capacity: ClusterCapacity, usable: Selection, choice: Selection, needed: int) -> TrialPlan:
        smallest, share = choice.memory_bytes, self._share(choice, needed)
        is_capped = self.max_trials_per_gpu is not None and self.max_trials_per_gpu < smallest // needed
        capped = f", with max_trials_per_gpu={self.max_trials_per_gpu}" if is_capped else ""
        request = self._with_gpus(from_ticks(share))
        on_each = f"{counted(TICKS // share, request.unit)} on a GPU of {_to_text(smallest, needed)}"
        reasons = [
            f"{format_bytes(needed)} per {request.unit}: {on_each}{capped}",
            *self._near_misses([smallest], needed),
            *self._left_out(capacity, usable, choice),
        ]
        plan = plan_gpus(capacity, choice, request, choose_cpus=self.cpus is None, reasons=reasons)
        if is_capped and plan.limited_by == "GPU":
            return plan.model_copy(update={"limited_by": Limit.MAX_TRIALS_PER_GPU})
        return plan

    def _near_misses(self, device_sizes: Iterable[int], needed: int) -> Iterator[str]:
        """Yield a sentence for each device size on which one more worker would fit if it needed slightly less."""
        if self.profile is not None:
            return  # the need was measured
        unit = self._with_gpus(1).unit
        for device_bytes in sorted(set(device_sizes)):
            fewer_bytes = memory_for_one_more(device_bytes, needed, self.max_trials_per_gpu)
            if fewer_bytes is not None:
                number = device_bytes // fewer_bytes
                yield (
                    f"with gpu_memory: {format_request(fewer_bytes)} ({difference_text(fewer_bytes, needed)}), "
                    f"{counted(number, unit)} instead of {number - 1} would fit on a GPU of "
                    f"{_to_text(device_bytes, needed)}"
                )

    def _left_out(self, capacity: ClusterCapacity, usable: Selection, choice: Selection) -> list[str]:
        used = {node.shape for node, _ in choice.groups}
        could = {node.shape for node, _ in usable.groups}
        left = [group for group in capacity.gpu_groups(usable.accelerator_type) if group.node.shape not in used]
        without_cpus = describe_gpus(group for group in left if group.node.shape not in could)
        others = describe_gpus(group for group in left if group.node.shape in could)
        reasons = []
        if others and choice.accelerator_type:
            reasons.append(f"some GPUs are not used because the plan uses only {choice.accelerator_type}: {others}")
        elif others:
            reasons.append(f"some GPUs are not used because their memory is too small or unknown: {others}")
        if without_cpus:
            of_what = "CPU" if self.memory is None else "CPU or host memory"
            reasons.append(f"some GPUs are not used because their nodes have too little {of_what}: {without_cpus}")
        return reasons

    def _infeasible(self, capacity: ClusterCapacity, usable: Selection, needed: int) -> InfeasibleRequestError:
        wish = {"accelerator_type": usable.accelerator_type, "gpu_memory_bytes": needed, "is_any_share": True}
        request = self._with_gpus(1).model_copy(update=wish)
        # If some GPUs are large enough, it is another resource that their nodes lack.
        large = _large_without_room(capacity, request)
        if large:
            return infeasible(capacity, request, groups=large)
        there = usable
        if not there.groups:  # no GPU node has enough CPUs, but the GPU memory may also be too small
            there = gpus_of_type(capacity, usable.accelerator_type)
        memories = [node.smallest_gpu_memory_bytes for node, _ in there.groups]
        is_too_small = all(memory is not None and memory < needed for memory in memories)
        if not there.groups or not (usable.groups or is_too_small):
            return infeasible(capacity, request)
        indistinct = why_not_distinct(there.groups, needed)
        if indistinct is not None:
            offered, hint = indistinct
            error = InfeasibleRequestError(str(request), offered, Limit.GPU_MEMORY, hint)
            return in_context(error, capacity, request)
        known = [memory for memory in memories if memory is not None]
        if known:
            unread = " whose memory is known" if len(known) < len(memories) else ""
            error = InfeasibleRequestError(
                str(request),
                f"the largest GPUs{unread} have {_to_text(max(known), needed)}",
                Limit.GPU_MEMORY,
                f"Request at most {format_request(max(known))} of GPU memory, or add a larger GPU."
                f"{gpu_memory_hint(there.groups)}",
            )
            return in_context(error, capacity, request)
        return _unread(str(request), there.groups)


def _large_without_room(capacity: ClusterCapacity, request: Request) -> tuple[NodeGroup, ...]:
    """Return the nodes whose GPUs have enough memory, but that have too few other resources for a worker."""
    needed = request.gpu_memory_bytes or 0
    large = (group for group in capacity.gpu_groups(request.accelerator_type) if gpu_memory_of(group.node) >= needed)
    return tuple(group for group in large if workers_on_node(group.node, request) == 0)


def _models_of(nodes: Iterable[NodeCapacity]) -> set[str | None]:
    """Return the GPU models of nodes, and ``None`` if a node does not list its GPUs."""
    models: set[str | None] = set()
    for node in nodes:
        if node.devices:
            models.update(gpu.name for gpu in node.devices)
        else:
            models.add(None)
    return models


def _needs_of_successful(profile: GpuMemoryProfile, overhead: int | None) -> list[int]:
    """Return the GPU memory, in bytes, of each measured config that did not run out of memory."""
    successful = [measured for measured in profile.measurements if not measured.ran_out]
    needs = [profile.gpu_memory_bytes(measured.config, overhead) for measured in successful]
    return [needed for needed in needs if needed is not None]


def _unread(asked: str, groups: Sequence[NodeGroup]) -> InfeasibleRequestError:
    """Return the error for nodes with GPUs of unknown memory, with how to state their memory."""
    nodes = [node for node, _ in groups]
    num_nodes = sum(count for _, count in groups)
    types = sorted({node.accelerator_type for node in nodes if node.accelerator_type})
    listed = ((node.resources.gpus, len(node.devices or ())) for node in nodes)
    # Ray counts more GPUs than the driver lists, so some of Ray's GPUs would share a device.
    partly = min(((gpus, devices) for gpus, devices in listed if 0 < devices < gpus), default=None)
    unknown, hint = "", "set their accelerator type"
    if partly:
        unknown = f" in full: only {partly[1]} of {partly[0]:g} GPUs are listed as devices"
        hint = how_to_state_gpu_memory(nodes)
    elif types:
        unknown = f", and is unknown for the type {shorten_names(types)}"
        hint = how_to_state_gpu_memory(nodes)
    if all(node.has_simulated_gpus for node in nodes):
        num_gpus = max(node.resources.gpus for node in nodes)
        unknown += " (its GPUs are simulated)" if num_nodes == 1 else " (their GPUs are simulated)"
        hint = (
            "declare the type of simulated GPUs, as in "
            f'ray.init(num_gpus={num_gpus:g}, resources={{"accelerator_type:A100": 1}})'
        )
    elif any(node.address and may_be_nvidia(node.accelerator_type) for node in nodes):
        hint = f"install nvidia-ml-py on the GPU nodes and probe again, {hint}"
    where = "the GPU node" if num_nodes == 1 else f"all {num_nodes} GPU nodes"
    return InfeasibleRequestError(
        asked,
        f"the GPU memory of {where} was not read{unknown}",
        Limit.GPU_MEMORY,
        f"{hint[0].upper()}{hint[1:]}, or use GpuPolicy with a fraction of a GPU.",
    )


def memory_for_one_more(device_bytes: int, needed: int, most: int | None = None) -> int | None:
    """Return the memory per worker with which one more worker fits on a device, if it is slightly less than ``needed``.

    Users divide the nominal size of a GPU, such as 40 GiB, but its workers get only 39.6 GiB. Therefore, the result may
    be less than ``needed`` by the largest difference between the two sizes.

    Args:
        device_bytes: The memory of the device.
        needed: The memory that a worker needs, in bytes.
        most: The maximum number of workers on a device.
    """
    fit = device_bytes // needed
    if fit >= min(_MOST_NEAR_MISSES, most or _MOST_NEAR_MISSES):
        return None
    # Round down to the amounts that users write.
    fewer_bytes = parse_bytes(format_request(device_bytes // (fit + 1))) if device_bytes > fit else 0
    if fewer_bytes >= needed * (1 - MOST_RESERVED):
        return fewer_bytes
    return None


def difference_text(fewer_bytes: int, needed: int) -> str:
    """Return by how much ``fewer_bytes`` is less than ``needed``, such as ``"1.2% less"`` or ``"3.5 MiB less"``."""
    part = f"{1 - fewer_bytes / needed:.1%}"
    if part == "0.0%":
        part = format_bytes(needed - fewer_bytes)
    return f"{part} less"


def _num_devices(groups: Iterable[NodeGroup]) -> int:
    return sum(count * int(node.resources.gpus) for node, count in groups)


def _larger_sizes(groups: Iterable[NodeGroup], needed: int) -> Iterator[tuple[int, int]]:
    """Yield device sizes in descending order, each with the number of devices that have at least this size.

    If several sizes have room for the same number of workers, only the smallest of them is yielded. The last size is
    omitted, because ``selections_of`` yields its devices.
    """
    devices_of: Counter[int] = Counter()
    for group in groups:
        devices_of[gpu_memory_of(group.node)] += _num_devices([group])
    sizes = sorted((size for size in devices_of if size >= needed), reverse=True)
    numbers = accumulate(devices_of[size] for size in sizes)
    by_fit = {size // needed: (size, number) for size, number in zip(sizes, numbers, strict=True)}
    yield from list(by_fit.values())[:-1]


def _spread(wanted: list[int], largest_device: int) -> Iterator[int]:
    """Yield up to 12 slot sizes: wanted sizes, the size of the largest device, and sizes in between."""
    sizes = sorted({*wanted, largest_device})
    if len(sizes) > _MOST_SIZES:
        last = len(sizes) - 1
        # Of too many sizes, every few are kept, with the smallest and the largest. Rounding up prefers the larger of
        # two sizes, in which trials of the smaller one also fit.
        sizes = [sizes[-(-i * last // (_MOST_SIZES - 1))] for i in range(_MOST_SIZES)]
    while len(sizes) < _MOST_SIZES:
        # Of too few sizes, the largest relative gap is halved, because a config in this gap wastes the most memory.
        gaps = ((high / low, i) for i, (low, high) in enumerate(pairwise(sizes)))
        gap, at = max(gaps, default=(1.0, 0))
        if gap < _LEAST_GAP:
            break
        sizes.insert(at + 1, math.isqrt(sizes[at] * sizes[at + 1]))
    yield from sizes


def _describe_slots(by_config: SlotsByProfile) -> Iterator[str]:
    """Yield a sentence with the GPU fraction of each config, or only of the smallest and the largest config."""
    named = [measured for measured in by_config.profile.measurements if not measured.ran_out]
    named.sort(key=lambda measured: measured.total_bytes)
    if len(named) > _MOST_NAMED:
        named = [named[0], named[-1]]
    for measured in named:
        needed = by_config.needed_bytes(measured.config) or 0
        counts = ""
        if format_bytes(needed) != format_bytes(measured.total_bytes):  # true if the overhead differs
            counts = f", counted as {format_bytes(needed)}"
        with suppress(InfeasibleRequestError):  # no slot is large enough for this config
            yield f"{measured}{counts}, so {amount_of(by_config.slot_for(measured.config).worker.gpus, 'GPU')}"


def _describe_extrapolation(
    profile: GpuMemoryProfile, gpu_models: Collection[str | None], overhead: int | None
) -> Iterator[str]:
    others = sorted({name for name in gpu_models if name is not None} - set(profile.gpu_models))
    if others and profile.gpu_models:
        on_top = "" if overhead is None else f"; the plan assumes {format_bytes(overhead)} of overhead per worker"
        yield (
            f"the profile was measured on {', '.join(profile.gpu_models)}, but trials may need more or less GPU memory "
            f"on {', '.join(others)}{on_top}"
        )


def _describe_profile(profile: GpuMemoryProfile, held: list[int], headroom: float) -> str:
    on = f" on {', '.join(profile.gpu_models)}" if profile.gpu_models else ""
    least, most = format_bytes(min(held)), format_bytes(max(held))
    amount = least if least == most else f"{least} to {most}"
    count = len(profile.measurements)
    needs = "needs" if count == 1 else "need"
    return (
        f"{counted(count, 'config')} measured{on} {needs} {amount}; each trial gets the memory "
        f"that its config needs plus {headroom:.0%}"
    )


def _to_text(device_bytes: int, needed: int) -> str:
    """Return a device size as text, with enough digits to show, for example, that 19.99 GiB is less than 4 * 5 GiB."""
    texts = [format_bytes(device_bytes, digits) for digits in (1, 2, 3)]
    return next((text for text in texts if parse_bytes(text) // needed == device_bytes // needed), texts[-1])
