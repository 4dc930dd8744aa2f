"""How much of a mixed cluster plans use: beside the most that is possible, and beside the rules of other tools.

Clusters are drawn from published node shapes (``node_shapes``), policies are what users write. Whoever says where
trials run, a plan or a tool (``other_tools``), is checked by the same arithmetic, which knows CPUs, devices and their
memory only: what finds no room on its node, or no memory on its GPU, has been promised in vain.

The most that is possible is counted node by node, and device by device: a trial's workers may be on several nodes, but
a worker is on one. With two types of slots, those of the first come first.
"""

import math
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.table import Table

from tune_policies import (
    CpuPolicy,
    EvenSplitPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    NodeCapacity,
    ResourcePolicy,
)
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, TextTable
from tune_policies.placement.layout import workers_on_nodes
from tune_policies.tune.slot_assignment import TrialDurations
from tune_policies.values.resources import TICKS, to_ticks
from tune_policies.values.units import GIB

from .node_shapes import PricedCluster, draw_priced_cluster
from .other_tools import FOR_A_NUMBER, FOR_MANY, Claim, Need, Promise, Rule
from .pool_simulation import SlotType, least_makespan, simulate

BEST: Final = "best possible"
OURS: Final = "tune-policies"

_NONE: Final = "\N{EN DASH}"
_ANY: Final = 10**6
"""Trials where as many run as there is room for: more than any cluster here holds."""

_SLOW: Final = 0.25
"""How fast a trial of a mix runs without a GPU, beside one with a quarter of one."""


class Case(NamedTuple):
    """A policy on a cluster.

    Attributes:
        family: What users of such policies want.
        policy: The policy.
        needs: What a trial in each type of slot needs, the best first.
        num_trials: Of the whole experiment; each takes an hour in a slot of the first type.
        is_divided: Whether the cluster is divided among so many trials; else as many run as there is room for.
        cluster: The cluster.
    """

    family: str
    policy: ResourcePolicy
    needs: tuple[Need, ...]
    num_trials: int
    is_divided: bool
    cluster: PricedCluster

    @property
    def nodes(self) -> list[NodeCapacity]:
        """The nodes on which work is wanted."""
        return [node for node in self.cluster.capacity.nodes if node.resources.cpus]

    @property
    def speeds(self) -> list[float]:
        """How fast a trial is in each type of slot."""
        return [1, _SLOW][: len(self.needs)]


class Result(NamedTuple):
    """What runs at once, of all that was promised.

    Attributes:
        promised: Trials that were promised.
        trials: Trials that run, in each type of slot.
        gpus: GPUs that they hold, of all in the cluster: from 0 to 1.
        gpu_memory: GPU memory that they asked for, of all in the cluster: from 0 to 1.
        cpus: CPUs that they hold, of those on the nodes that are good for them: from 0 to 1.
        hours: Until all trials of the experiment have ended; infinite: none runs.
    """

    promised: int
    trials: tuple[int, ...]
    gpus: float
    gpu_memory: float
    cpus: float
    hours: float

    @property
    def at_once(self) -> int:
        """Trials that run."""
        return sum(self.trials)

    @property
    def in_vain(self) -> int:
        """Trials that were promised, and do not run."""
        return self.promised - self.at_once


class Row(NamedTuple):
    """One case, and what each tool makes of it by its name."""

    case: Case
    results: dict[str, Result]


def draw_cases(seed: int) -> Iterator[Case]:
    """Yield a case of each family on the cluster of ``seed``."""
    rng = random.Random(seed)
    cluster = draw_priced_cluster(rng)
    trials = rng.randint(20, 200)
    gib, cpus, workers = rng.randint(4, 24), rng.choice((1, 2, 4)), rng.randint(2, 8)
    least = rng.choice((0.25, 0.5, 1))
    whole, quarter, two = Need(share=TICKS), Need(share=TICKS // 4), Need(cpus=2)

    def case(family: str, policy: ResourcePolicy, *needs: Need, is_divided: bool = False) -> Case:
        return Case(family, policy, needs, trials, is_divided, cluster)

    yield case("whole GPUs", GpuPolicy(), whole)
    yield case("quarter GPUs", GpuPolicy(gpus=0.25), quarter)
    yield case("GPU memory", GpuMemoryPolicy(gpu_memory=f"{gib}GiB"), Need(gpu_bytes=gib * GIB))
    yield case("CPUs", CpuPolicy(cpus=cpus), Need(cpus=cpus))
    yield case("even split of CPUs", EvenSplitPolicy(num_trials=trials), Need(cpus=1), is_divided=True)
    split = EvenSplitPolicy(num_trials=trials, min_gpus=least)
    yield case("even split of GPUs", split, Need(cpus=1, share=to_ticks(least)), is_divided=True)
    mixed = MixedPolicy(GpuMemoryPolicy(gpu_memory=f"{gib}GiB", cpus=1), CpuPolicy(cpus=2), speeds=(1, _SLOW))
    yield case("GPU memory, and CPUs", mixed, Need(cpus=1, gpu_bytes=gib * GIB), two)
    beside = MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2, num_workers=workers), speeds=(1, _SLOW))
    yield case("GPUs, Train on CPUs", beside, quarter._replace(cpus=1), two._replace(num_workers=workers))
    yield case("Train on GPUs", GpuPolicy(num_workers=workers), whole._replace(num_workers=workers))


def promise_of_plan(case: Case) -> Promise:
    """Return what a plan promises; nothing, where the policy says that no trial fits."""
    capacity = case.cluster.capacity
    try:
        plan = case.policy.plan(capacity)
    except InfeasibleRequestError:
        return Promise(0, ())
    claims = [
        Claim(
            on_node.node,
            workers,
            slot.worker.cpus,
            to_ticks(slot.worker.gpus),
            is_limited=True,
            kind=int(len(case.needs) > 1 and slot.worker.gpus == 0),
        )
        for on_node in workers_on_nodes(plan.slots, capacity)
        for slot, workers in zip(plan.slots, on_node.workers, strict=True)
        if workers
    ]
    return Promise(plan.max_concurrent_trials, claims)


def most_possible(case: Case) -> Promise:
    """Return where the most trials run: as many on each node as it holds, with all CPUs if they are left open."""
    left = {node.node_id: node.resources.cpus for node in case.nodes}
    claims = []
    for kind, need in enumerate(case.needs):
        for node in case.nodes:
            workers, gpus = _ANY, int(node.resources.gpus)
            if need.share > TICKS:
                workers = gpus * TICKS // need.share
            elif need.has_gpu:
                workers = gpus * need.per_device(node)
            if need.cpus is not None:
                workers = min(workers, int(left[node.node_id] // need.cpus))
            if workers:
                share = need.share or (TICKS // need.per_device(node) if need.gpu_bytes else 0)
                cpus = need.cpus or left[node.node_id] / workers
                cpus = math.floor(cpus) if cpus >= 1 else cpus
                left[node.node_id] -= workers * cpus
                claims.append(Claim(node, workers, cpus, share, kind=kind))
    trials = sum(
        sum(claim.workers for claim in claims if claim.kind == kind) // need.num_workers
        for kind, need in enumerate(case.needs)
    )
    return Promise(min(trials, case.num_trials) if case.is_divided else trials, claims)


def check(case: Case, promise: Promise) -> Result:
    """Return what of a promise runs. Where more is claimed of a GPU than its memory, as many run as it holds."""
    cpus_left = {node.node_id: to_ticks(node.resources.cpus) for node in case.nodes}
    gpus_left = {node.node_id: int(node.resources.gpus) for node in case.nodes}
    workers, used = [0] * len(case.needs), [_NOTHING] * len(case.needs)
    for claim in promise.claims:
        need, name, memory = case.needs[claim.kind], claim.node.node_id, claim.node.smallest_gpu_memory_bytes or 0
        if name not in cpus_left:
            continue
        runs = claim.workers
        if claim.cpus:
            runs = min(runs, cpus_left[name] // to_ticks(claim.cpus))
        if claim.share:
            runs = min(runs, _room_on_devices(claim, need, gpus_left[name], memory))
            gpus_left[name] -= math.ceil(runs * claim.share / TICKS - 0.01)
        elif need.has_gpu:
            runs = 0
        cpus_left[name] -= runs * to_ticks(claim.cpus)
        workers[claim.kind] += runs
        # A third is 0.3333 to Ray.
        gpus = 1 / (TICKS // claim.share) if 0 < claim.share < TICKS else claim.share / TICKS
        gpu_bytes = need.gpu_bytes or gpus * memory
        used[claim.kind] = used[claim.kind].plus(Use(runs * gpus, runs * gpu_bytes, runs * claim.cpus))
    trials = [number // need.num_workers for number, need in zip(workers, case.needs, strict=True)]
    if case.is_divided:  # on the nodes that are named more may find room than run at once
        trials = [min(trials[0], promise.trials)]
    total = _NOTHING
    for number, need, found, use in zip(trials, case.needs, workers, used, strict=True):
        total = total.plus(use.times(number * need.num_workers / max(1, found)))
    there = _room(case)
    return Result(
        promise.trials,
        tuple(trials),
        total.gpus / there.gpus,
        total.gpu_bytes / there.gpu_bytes,
        total.cpus / there.cpus,
        _hours(case, trials),
    )


class Use(NamedTuple):
    """What workers hold: GPUs, bytes of GPU memory, and CPUs."""

    gpus: float
    gpu_bytes: float
    cpus: float

    def plus(self, other: "Use") -> "Use":
        """Return both together."""
        return Use(*(mine + its for mine, its in zip(self, other, strict=True)))

    def times(self, factor: float) -> "Use":
        """Return so many times as much."""
        return Use(*(each * factor for each in self))


_NOTHING: Final = Use(0, 0, 0)


def _room_on_devices(claim: Claim, need: Need, gpus: int, memory: int) -> int:
    """Return how many workers the GPUs of a node have room and memory for."""
    if claim.share >= TICKS:
        return gpus * TICKS // claim.share if memory >= need.gpu_bytes else 0
    on_each = TICKS // claim.share
    if need.gpu_bytes and claim.is_limited:
        on_each = on_each if memory // on_each >= need.gpu_bytes else 0
    elif need.gpu_bytes:
        on_each = min(on_each, memory // need.gpu_bytes)
    return gpus * on_each


def _room(case: Case) -> Use:
    """Return what the nodes have that are good for the trials, of each at least 1."""
    with_gpus = [node for node in case.nodes if node.resources.gpus]
    good = with_gpus if all(need.has_gpu for need in case.needs) else case.nodes
    gpus = sum(node.resources.gpus for node in with_gpus)
    gpu_bytes = sum(node.resources.gpus * (node.smallest_gpu_memory_bytes or 0) for node in with_gpus)
    return Use(max(1, gpus), max(1, gpu_bytes), max(1, sum(node.resources.cpus for node in good)))


def _hours(case: Case, trials: Sequence[int]) -> float:
    kinds = [SlotType(number, speed) for number, speed in zip(trials, case.speeds, strict=True) if number]
    if not kinds:
        return math.inf
    if len(kinds) == 1:
        return -(-case.num_trials // kinds[0].num_slots) / kinds[0].speed
    durations = TrialDurations([kind.speed for kind in kinds])
    return simulate([1.0] * case.num_trials, kinds, durations=durations)


def compare(case: Case) -> Row:
    """Return what each tool makes of a case."""
    best = check(case, most_possible(case))
    if len(case.needs) > 1:
        kinds = [SlotType(number, speed) for number, speed in zip(best.trials, case.speeds, strict=True) if number]
        best = best._replace(hours=least_makespan([1.0] * case.num_trials, kinds) if kinds else math.inf)
    results = {BEST: best, OURS: check(case, promise_of_plan(case))}
    rules: dict[str, Rule] = FOR_A_NUMBER if case.is_divided else FOR_MANY
    for name, rule in rules.items():
        # Of several types of slots, a tool has the first.
        promise = rule(case.needs[0], case.nodes, case.num_trials if case.is_divided else _ANY)
        if promise is not None:
            results[name] = check(case, promise)
    return Row(case, results)


def measure_plan_quality(seeds: range, plot: Path | None, *, markdown: bool) -> bool:
    """Print what plans and other tools make of the clusters of all seeds; return whether no plan promised in vain."""
    start = time.monotonic()
    rows: list[Row] = []
    for count, seed in enumerate(seeds, start=1):
        rows += (compare(case) for case in draw_cases(seed))
        if count % 50 == 0:
            print(f"{count} of {len(seeds)} clusters, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    rows = [row for row in rows if row.results[BEST].at_once]
    if markdown:
        print(_markdown(rows))
    else:
        TextConsole(width=160).print(_table(rows))
    for line in _second_types(rows):
        print(line)
    sources = sorted({row.case.cluster.source for row in rows})
    print(f"{len(seeds)} clusters of {', '.join(sources)}; {len(rows)} cases in which a trial fits")
    print(f"{time.monotonic() - start:.0f} s. {describe_machine()}")
    print(f"command: {own_command()}")
    if plot is not None:
        _draw(rows, plot)
    in_vain = [row for row in rows if row.results[OURS].in_vain]
    for row in in_vain:
        result = row.results[OURS]
        print(f"in vain: {result.in_vain} of {result.promised}: {row.case.policy!r}", file=sys.stderr)
    return not in_vain


def _second_types(rows: Sequence[Row]) -> Iterator[str]:
    """Yield how much of what is possible in slots of a second type a plan has."""
    for family, of_family in _by_family(rows).items():
        if len(of_family[0].case.needs) > 1:
            there = [row for row in of_family if row.results[BEST].trials[1]]
            parts = [row.results[OURS].trials[1] / row.results[BEST].trials[1] for row in there]
            mean, worst = statistics.mean(parts), min(parts)
            yield f"{family}: {OURS} has {mean:.1%} of the slots without GPUs that are possible, at worst {worst:.1%}"


def _by_family(rows: Iterable[Row]) -> dict[str, list[Row]]:
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        families[row.case.family].append(row)
    return families


def _tools(rows: Sequence[Row]) -> list[str]:
    """Return the names of the tools that have something for any of these cases, in one order."""
    return list(dict.fromkeys(name for row in rows for name in row.results))


class Summary(NamedTuple):
    """What a tool makes of all cases of a family: means, unless the name says otherwise.

    Attributes:
        cases: In how many cases it has something for such trials.
        at_once: Trials that run, as a part of the most that help: see :func:`_enough`.
        worst: The smallest such part.
        cases_in_vain: In which part of the cases it promises trials that do not run.
        in_vain: Which part of all trials that it promises does not run.
        gpus: See :class:`Result`.
        gpu_memory: See :class:`Result`.
        cpus: See :class:`Result`.
        waves: Rounds that all trials take.
        hours: Until all trials have ended, as a multiple of the least; of the cases in which any runs.
        price: US dollars for a trial, where the prices of all nodes are known and any trial runs; else ``None``.
    """

    cases: int
    at_once: float
    worst: float
    cases_in_vain: float
    in_vain: float
    gpus: float
    gpu_memory: float
    cpus: float
    waves: float
    hours: float
    price: float | None


def summarise(rows: Sequence[Row], tool: str) -> Summary:
    """Return what ``tool`` makes of cases of one family."""
    found = [(row.case, row.results[tool], row.results[BEST]) for row in rows if tool in row.results]
    parts = [min(1.0, result.at_once / _enough(case, best)) for case, result, best in found]
    ended = [(case, result, best) for case, result, best in found if result.at_once]
    prices = [
        case.cluster.price_per_hour * result.hours / case.num_trials
        for case, result, _ in ended
        if case.cluster.price_per_hour is not None
    ]

    def mean(values: Iterable[float]) -> float:
        return statistics.mean([*values] or [math.nan])

    return Summary(
        len(found),
        mean(parts),
        min(parts),
        mean(result.in_vain > 0 for _, result, _ in found),
        sum(result.in_vain for _, result, _ in found) / max(1, sum(result.promised for _, result, _ in found)),
        mean(result.gpus for _, result, _ in found),
        mean(result.gpu_memory for _, result, _ in found),
        mean(result.cpus for _, result, _ in found),
        mean(-(-case.num_trials // result.at_once) for case, result, _ in ended),
        mean(result.hours / best.hours for _, result, best in ended),
        mean(prices) if prices else None,
    )


_HEADINGS: Final = (
    *("Trials", "Who", "Cases", "At once", "Worst", "In vain: cases", "trials"),
    *("GPUs", "GPU memory", "CPUs", "Waves", "Makespan", "$ a trial"),
)


def _cells(rows: Sequence[Row]) -> Iterator[list[str]]:
    for family, of_family in _by_family(rows).items():
        for tool in _tools(of_family):
            each = summarise(of_family, tool)
            use = [f"{part:.1%}" for part in (each.gpus, each.gpu_memory, each.cpus)]
            if of_family[0].case.is_divided and tool == BEST:
                use = [_NONE] * len(use)
            elif not any(need.has_gpu for need in of_family[0].case.needs):
                use[:2] = [_NONE] * 2
            parts = [f"{part:.1%}" for part in (each.at_once, each.worst, each.cases_in_vain, each.in_vain)]
            price = _NONE if each.price is None else f"{each.price:.3f}"
            yield [family, tool, str(each.cases), *parts, *use, f"{each.waves:.2f}", f"{each.hours:.3f}", price]
            family = ""


def _enough(case: Case, best: Result) -> int:
    """Return how many trials at once are the most that help: of a divided cluster, as many as the fewest waves need."""
    return -(-case.num_trials // -(-case.num_trials // best.at_once)) if case.is_divided else best.at_once


def _table(rows: Sequence[Row]) -> Table:
    table = TextTable(title="Trials at once, and what they use of the cluster")
    for index, heading in enumerate(_HEADINGS):
        table.add_column(heading, justify="right" if index > 1 else "left")
    for cells in _cells(rows):
        if cells[0]:
            table.add_section()
        table.add_row(*cells)
    return table


def _markdown(rows: Sequence[Row]) -> str:
    lines = [_HEADINGS, ("---", "---", *("---:",) * (len(_HEADINGS) - 2)), *_cells(rows)]
    return "\n".join("| " + " | ".join(cells).replace("%", " %") + " |" for cells in lines)


def _draw(rows: Sequence[Row], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from tune_policies.benchmarks.report.figures import LOOK
    from tune_policies.benchmarks.report.page import save_figure

    families = _by_family(rows)
    num_rows = -(-len(families) // 2)
    with mpl.rc_context({**LOOK, "font.size": 9, "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9}):
        figure = Figure(figsize=(8.4, 1.85 * num_rows + 0.7), layout="constrained")
        panels = figure.subplots(num_rows, 2, sharex=True).flat
        longest = max(len(_tools(of_family)) for of_family in families.values()) - 1
        for axes, (family, of_family) in zip(panels, families.items(), strict=False):
            _draw_family(axes, family, of_family)
            axes.set_ylim(longest - 0.4, -0.6)  # bars of one height in all panels
        for axes in panels[len(families) :]:
            axes.set_visible(False)
        panels[len(families) - 2].tick_params(labelbottom=True)  # nothing may be below it
        handles = [
            _patch(_RUN, "run, with tune-policies"),
            _patch(_OTHERS_RUN, "run, with another tool"),
            _patch(_IN_VAIN, "promised in vain"),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=3)
        figure.supxlabel("trials at once, in % of the most possible: mean, and as a mark the worst cluster", fontsize=9)
        save_figure(figure, path, force=True)


_RUN: Final[dict[str, Any]] = {"facecolor": "#0072B2"}
_OTHERS_RUN: Final[dict[str, Any]] = {"facecolor": "#7F8A96"}
_IN_VAIN: Final[dict[str, Any]] = {"facecolor": "none", "edgecolor": "#D55E00", "hatch": "/////", "linewidth": 0.8}


def _patch(style: dict[str, Any], label: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=label, **style)


def _draw_family(axes: Any, family: str, rows: Sequence[Row]) -> None:
    tools = [tool for tool in _tools(rows) if tool != BEST]
    for place, tool in enumerate(tools):
        each = summarise(rows, tool)
        in_vain = statistics.mean(
            row.results[tool].in_vain / _enough(row.case, row.results[BEST]) for row in rows if tool in row.results
        )
        style = _RUN if tool == OURS else _OTHERS_RUN
        axes.barh(place, 100 * each.at_once, height=0.7, **style)
        if in_vain:
            axes.barh(place, 100 * in_vain, left=100 * each.at_once, height=0.7, **_IN_VAIN)
        axes.plot([100 * each.worst], [place], "|", color="#24292F", markersize=9, markeredgewidth=1.5)
    axes.set_yticks(range(len(tools)), tools)
    axes.set_title(family, loc="left", fontsize=10)
    axes.grid(visible=False, axis="y")
    axes.axvline(100, color="#24292F", linewidth=0.8)
