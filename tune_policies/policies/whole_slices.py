"""Plans Train runs on whole TPU slices: as many as are intact, and no worker beside them."""

from collections.abc import Iterable
from typing import NamedTuple

from tune_policies.cluster.accelerators import families_of
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup
from tune_policies.cluster.tpu_slices import (
    TOPOLOGIES,
    TOPOLOGY,
    SliceShape,
    TpuSlice,
    check_topology,
    find_slices,
    topologies_not_told_apart,
)
from tune_policies.placement.packing import Request, count_workers
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import Resources, format_amount


class SliceRequest(NamedTuple):
    """What one trial on whole slices needs.

    Attributes:
        shape: The slices.
        tpus: Chips of each worker.
        cpus: CPUs of each worker; ``None``: as many as strand no chip.
        num_workers: Train workers of the trial.
    """

    shape: SliceShape
    tpus: int
    cpus: float | None
    num_workers: int

    @property
    def workers_per_slice(self) -> int:
        """Workers that fill one slice."""
        return self.shape.chips // self.tpus

    @property
    def num_slices(self) -> int:
        """Slices of the trial."""
        return self.num_workers // self.workers_per_slice

    def on(self, hosts: Iterable[NodeCapacity]) -> Request:
        """Return the request for the packing, with the CPUs that suit ``hosts``."""
        cpus = self.cpus
        if cpus is None:
            per_worker = [
                host.resources.cpus / workers
                for host in hosts
                if host.resources.cpus and (workers := host.resources.custom.get("TPU", 0) // self.tpus)
            ]
            fewest = min(per_worker, default=0)
            # Not 0, for which Train reserves a whole CPU on a slice.
            cpus = fewest if 0 < fewest < 1 else max(1, int(fewest))
        return Request(
            worker=Resources(cpus=cpus, custom={"TPU": self.tpus}),
            num_workers=self.num_workers,
            accelerator_type=self.shape.accelerator_type,
        )


def check_slice_request(request: SliceRequest) -> None:
    """Check that the workers fill slices that there can be.

    Raises:
        InvalidResourcesError: Ray has no such slices, or they cannot be filled so.
    """
    shape, tpus = request.shape, request.tpus
    check_topology(*shape)
    if shape.chips % tpus:
        raise InvalidResourcesError(
            f"amount={tpus} of TPU does not divide the {_chips(shape.chips)} of a {shape.topology} slice: "
            f"ask for {shape.chips}"
        )
    if request.cpus == 0:
        raise InvalidResourcesError(
            "cpus=0 on TPU slices: Ray Train reserves a whole CPU for a worker that names none. Ask for more than 0"
        )
    full = request.workers_per_slice
    below = request.num_workers // full * full
    if request.num_workers == 0 or request.num_workers != below:
        nearest = " or ".join(str(number) for number in (below, below + full) if number)
        raise InvalidResourcesError(
            f"num_workers={request.num_workers} does not fill whole slices: {shape.topology} has "
            f"{_chips(shape.chips)}, so {full} {'worker' if full == 1 else 'workers'} of {tpus} TPU fill one. "
            f"Ask for num_workers={nearest}"
        )


def plan_slices(capacity: ClusterCapacity, wanted: SliceRequest) -> TrialPlan:
    """Return the plan with as many trials as there are intact slices for.

    Raises:
        InfeasibleRequestError: There are too few for one trial.
    """
    shape = wanted.shape
    found = find_slices(capacity.nodes, shape)
    request = wanted.on(host for each in found.intact for host in each.hosts)
    usable, left_out = [], dict(found.broken)
    for each in found.intact:
        workers = count_workers((NodeGroup(host, 1) for host in each.hosts), request)
        # It has as many chips as the topology, so all its workers find room only if every host is full.
        if workers == wanted.workers_per_slice:
            usable.append(each)
        else:
            left_out[each.name] = f"its hosts hold {workers} of {wanted.workers_per_slice} such workers"
    request = wanted.on(host for each in usable for host in each.hosts) if usable else request
    if len(usable) < wanted.num_slices:
        raise _too_few_slices(capacity, wanted, request, usable, left_out)
    reasons = [*_reasons(wanted, request), *(f"left out slice {name!r}: {left_out[name]}" for name in sorted(left_out))]
    if others := topologies_not_told_apart(capacity.nodes, shape):
        reasons.append(f"Ray Train goes by {shape.told_by}, so a trial may get hosts of {', '.join(others)} instead")
    hosts = tuple(host for each in usable for host in each.hosts)
    plan = build_plan(capacity.with_nodes(hosts), request, reasons)
    slots = tuple(slot.model_copy(update={"topology": shape.topology}) for slot in plan.slots)
    return plan.model_copy(update={"slots": slots, "limited_by": "TPU slices"})


def _reasons(wanted: SliceRequest, request: Request) -> Iterable[str]:
    slices, workers = wanted.num_slices, wanted.workers_per_slice
    yield (
        f"{slices} whole {wanted.shape.topology} {'slice' if slices == 1 else 'slices'} per trial, each for {workers} "
        f"{'worker' if workers == 1 else 'workers'} of {wanted.tpus} TPU"
    )
    if wanted.cpus is None:
        yield f"{format_amount(request.worker.cpus)} CPU per worker, so that no TPU is left without CPUs"


def _too_few_slices(
    capacity: ClusterCapacity,
    wanted: SliceRequest,
    request: Request,
    usable: list[TpuSlice],
    left_out: dict[str, str],
) -> InfeasibleRequestError:
    shape = wanted.shape
    slices, there = wanted.num_slices, len(usable)
    why = "".join(f"; slice {name!r}: {reason}" for name, reason in sorted(left_out.items())[:3])
    return InfeasibleRequestError(
        f"{request} on {slices} whole {shape.topology} {'slice' if slices == 1 else 'slices'}",
        f"the cluster has {there or 'no'} intact {'slice' if there == 1 else 'slices'} that can hold them{why}",
        "TPU slices",
        _hint(capacity, wanted, there),
    )


def _hint(capacity: ClusterCapacity, wanted: SliceRequest, usable: int) -> str:
    shape = wanted.shape
    if usable:
        return f"Ask for num_workers={usable * wanted.workers_per_slice}, or add slices."
    if wanted.cpus is not None:
        try:
            plan = plan_slices(capacity, wanted._replace(cpus=None))
        except InfeasibleRequestError:
            pass
        else:
            return f"Ask for at most {format_amount(plan.worker.cpus)} CPU per worker, or add slices."
    if smaller := _tpus_that_fit(capacity, wanted):
        num_workers = wanted.num_slices * shape.chips // smaller
        return f"Ask for amount={smaller} and num_workers={num_workers}, or add slices with larger hosts."
    if fitting := _topologies_there(capacity, shape):
        return f"Ask for topology={' or '.join(map(repr, fitting))}, which is there, or add such a slice."
    return "Add such a slice: Ray labels its hosts with ray.io/tpu-… when it finds them."


def _tpus_that_fit(capacity: ClusterCapacity, wanted: SliceRequest) -> int | None:
    """Return the most chips per worker, fewer than wanted, that every host of some slice can give."""
    for tpus in sorted((amount for amount in families_of("TPU")[0].amounts if amount < wanted.tpus), reverse=True):
        workers = wanted.num_slices * wanted.shape.chips // tpus
        try:
            plan_slices(capacity, wanted._replace(tpus=tpus, num_workers=workers))
        except InfeasibleRequestError:
            continue
        return tpus
    return None


def _topologies_there(capacity: ClusterCapacity, shape: SliceShape) -> list[str]:
    """Return the other topologies of which the cluster has an intact slice of that type."""
    named = {node.labels.get(TOPOLOGY) for node in capacity.nodes} & TOPOLOGIES[shape.accelerator_type]
    others = [shape._replace(topology=topology) for topology in named if topology not in (None, shape.topology)]
    return sorted(other.topology for other in others if find_slices(capacity.nodes, other).intact)


def _chips(count: int) -> str:
    return f"{count} {'chip' if count == 1 else 'chips'}"
