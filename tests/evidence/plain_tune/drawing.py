"""Random programs of Ray Tune as frozen values, drawn from a seed, and simpler variants of a program.

This module neither imports Ray nor runs anything. A program contains all that both runs share: the cluster and its
events, the trials, their request, the scheduler and the searcher. It also contains a policy that requests the same
resources as the trials of plain Tune, so that the durations of both runs can be compared.
"""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from tune_policies import (
    AutoPolicy,
    ByConfigPolicy,
    CappedPolicy,
    CpuPolicy,
    FreeCapacityPolicy,
    GpuPolicy,
    MixedPolicy,
    ReservingPolicy,
    ResourcePolicy,
)

SCHEDULERS: Final = ("fifo", "asha", "median", "hyperband", "pbt", "pbt-synch", "resource-changing")
SEARCHERS: Final = ("grid", "random", "optuna", "hyperopt", "batches")
SHAPES: Final = ("function", "function-saves", "class", "class-resets")
_PAUSING: Final = ("hyperband", "pbt", "pbt-synch", "resource-changing")
"""The schedulers that pause or copy trials, and therefore require checkpoints."""
_WAITING: Final = ("hyperband", "pbt-synch")
"""The schedulers that wait for other trials. With a limit on unfinished trials, plain Tune can stop proceeding."""


def longest_allowed_s(plain_s: float) -> float:
    """Return how long a run under a policy may take, in seconds, if plain Tune takes ``plain_s``."""
    return 1.1 * plain_s + 5


class Frozen(BaseModel):
    """A frozen value that can be written as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Amounts(Frozen):
    """CPUs and GPUs of a node, a bundle, or another program."""

    cpus: float = 0
    gpus: float = 0

    @property
    def bundle(self) -> dict[str, float]:
        """The amounts as a bundle of a placement group."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus}
        return {name: amount for name, amount in amounts.items() if amount}


class Join(Frozen):
    """A node that joins the cluster during the run."""

    at_s: float
    node: Amounts


class Leave(Frozen):
    """An initial node that is killed during the run. ``node`` is its index; the head node, 0, never leaves."""

    at_s: float
    node: int


class Hold(Frozen):
    """Resources that another program holds. With ``from_s=0``, it holds them before the run begins.

    Attributes:
        until_s: The time of the release, or ``None`` if the program holds the resources until the run has ended.
    """

    owner: Literal["actor", "placement group", "job"]
    amounts: Amounts
    from_s: float = 0
    until_s: float | None = None


class Failure(Frozen):
    """Failures of all trials whose ``x`` is below a limit. Each of them fails ``times`` times at the same step."""

    how: Literal["raise", "kill"]
    at_step: int
    times: int
    below: float


class Request(Frozen):
    """The request of the trials.

    Attributes:
        way: Whether the request is omitted (one CPU), an argument of ``tune.run``, or made by ``tune.with_resources``.
        by_config: Whether a trial with ``y=3`` requests twice as many CPUs or, with two bundles, the second one twice.
    """

    bundles: tuple[Amounts, ...]
    way: Literal["omitted", "argument", "with_resources"] = "argument"
    by_config: bool = False

    @property
    def largest(self) -> Amounts:
        """The amounts of the largest trial."""
        bundles = self.bundles
        if self.by_config:
            bundles += self.bundles[-1:]
        gpus = self.gpus
        if len(bundles) > 2:  # the driver's bundle, and two with GPUs
            gpus *= 2
        return Amounts(cpus=sum(bundle.cpus for bundle in bundles), gpus=gpus)

    @property
    def has_policy_by_config(self) -> bool:
        """Whether a policy by config plans the request. Trials with several bundles keep them under any policy."""
        return self.by_config and len(self.bundles) == 1

    @property
    def gpus(self) -> float:
        """The GPUs of a trial with the smallest request."""
        return self.bundles[-1].gpus


class Program(Frozen):
    """A program that runs with plain Tune and under a policy."""

    seed: int
    nodes: tuple[Amounts, ...]
    request: Request
    policy: str
    scheduler: str = "fifo"
    searcher: str = "grid"
    max_concurrent: int | None = None
    shape: str = "function"
    reuse_actors: bool = False
    num_trials: int = 4
    num_steps: int = 3
    step_s: float = 0.1
    failure: Failure | None = None
    max_failures: int = 0
    joins: tuple[Join, ...] = ()
    leaves: tuple[Leave, ...] = ()
    holds: tuple[Hold, ...] = ()

    @property
    def saves(self) -> bool:
        """Whether the trials save checkpoints."""
        return self.shape != "function"

    @property
    def fails_for_good(self) -> bool:
        """Whether trials can fail more often than allowed. With PBT, a trial also inherits failures with a config."""
        if self.failure is None:
            return False
        return self.max_failures < self.failure.times or self.scheduler.startswith("pbt")

    def resource_policy(self) -> ResourcePolicy:
        """Return the policy, which requests the same as the trials of plain Tune."""
        own = self.request.bundles[-1]
        gpu: ResourcePolicy = _gpus_or_cpus(own)
        cpu: ResourcePolicy = CpuPolicy(cpus=own.cpus or 1)
        if self.request.has_policy_by_config:
            large = own.model_copy(update={"cpus": 2 * own.cpus})
            gpu = ByConfigPolicy("y", {3: _gpus_or_cpus(large)}, default=gpu)
            cpu = ByConfigPolicy("y", {3: CpuPolicy(cpus=large.cpus)}, default=cpu)
        held = [hold.amounts for hold in self.holds if hold.until_s is None]
        match self.policy:
            case "own":
                return gpu
            case "or-cpu":
                return gpu | cpu
            case "mixed" if self.request.has_policy_by_config:  # a mixed policy cannot contain policies by config
                return gpu
            case "mixed":
                return MixedPolicy(gpu, cpu)
            case "capped":
                return CappedPolicy(gpu, self.max_concurrent or 1)
            case "reserving":
                cpus = sum(amounts.cpus for amounts in held)
                whole_gpus = sum(math.ceil(amounts.gpus) for amounts in held)
                return ReservingPolicy(gpu, cpus=cpus, gpus=whole_gpus)
            case "free":
                return FreeCapacityPolicy(gpu)
            case "free-or-cpu":
                return FreeCapacityPolicy(gpu) | cpu
            case "any-cpus":
                return GpuPolicy(gpus=own.gpus)
            case "auto":
                return AutoPolicy()
        raise ValueError(self.policy)


def _gpus_or_cpus(amounts: Amounts) -> ResourcePolicy:
    if amounts.gpus:
        return GpuPolicy(gpus=amounts.gpus, cpus=amounts.cpus)
    return CpuPolicy(cpus=amounts.cpus or 1)


def draw(seed: int) -> Program:
    """Draw a program. Equal seeds give equal programs."""
    rng = random.Random(seed)
    scheduler = rng.choices(SCHEDULERS, (10, 3, 2, 1, 1, 1, 1))[0]
    # With several nodes, Tune's ResourceChangingScheduler requests more CPUs for a trial than a node has.
    num_nodes = 1 if scheduler == "resource-changing" else rng.choice((1, 2, 2, 3))
    nodes = tuple(_draw_node(rng) for _ in range(num_nodes))
    has_gpus = any(node.gpus for node in nodes)
    uses_gpus = has_gpus and scheduler != "resource-changing" and rng.random() < 0.65
    shapes = list(SHAPES)
    if scheduler in _PAUSING:
        shapes.remove("function")
    shape = rng.choice(shapes)
    can_reuse = scheduler != "resource-changing" and shape != "class"
    reuses = can_reuse and (shape == "class-resets" or rng.random() < 0.4)
    request = _draw_request(rng, nodes, uses_gpus=uses_gpus, by_config=not scheduler.startswith("pbt"))
    if scheduler == "resource-changing":  # it changes only requests of a single bundle, and of all trials alike
        request = Request(bundles=request.bundles[-1:])
    most_steps = 10
    if scheduler in _PAUSING:  # a paused trial needs a new process for each pause
        most_steps = 5
    num_steps = rng.randint(3, most_steps)
    joins = _draw_joins(rng, nodes)
    leaves = _draw_leaves(rng, nodes, request)
    holds = _draw_holds(rng, nodes, request)
    if any(hold.until_s is None for hold in holds):  # a trial may fit only on the node that would leave
        leaves = ()
    if scheduler == "resource-changing":  # plain Tune loses pending changes if nodes change
        joins, leaves = (), ()
    searchers: tuple[str, ...] = SEARCHERS
    if scheduler.startswith("pbt"):  # PBT refuses other searchers
        searchers = SEARCHERS[:2]
    searcher = rng.choice(searchers)
    policy = _draw_policy(rng, nodes, request, holds, leaves)
    if policy == "capped" and scheduler in _WAITING:
        policy = "own"
    needs_limit = policy == "capped"
    if not needs_limit and scheduler not in _WAITING:
        needs_limit = rng.random() < 0.3
    failure = _draw_failure(rng, num_steps)
    most_failures = rng.choice((0, 1, 3)) if failure else 0
    if leaves:  # in plain Tune, a lost node counts as a failure
        most_failures = 5
    if policy in ("any-cpus", "auto"):
        request = _as_planned(request, nodes)
    max_concurrent = rng.randint(1, 4) if needs_limit else None
    most_trials = 10 if reuses else 6
    return Program(
        seed=seed,
        nodes=nodes,
        request=request,
        policy=policy,
        scheduler=scheduler,
        searcher=searcher,
        max_concurrent=max_concurrent,
        shape=shape,
        reuse_actors=reuses,
        num_trials=rng.randint(4, most_trials),
        num_steps=num_steps,
        step_s=rng.choice((0.02, 0.05, 0.1, 0.2)),
        failure=failure,
        max_failures=most_failures,
        joins=joins,
        leaves=leaves,
        holds=holds,
    )


def _draw_node(rng: random.Random) -> Amounts:
    return Amounts(cpus=rng.randint(2, 4), gpus=rng.choice((0, 1, 1, 2)))


def _draw_request(rng: random.Random, nodes: tuple[Amounts, ...], *, uses_gpus: bool, by_config: bool) -> Request:
    gpus = 0.0
    if uses_gpus:
        node = rng.choice([node for node in nodes if node.gpus])
        gpus = _draw_up_to(rng, node.gpus, (0.25, 0.3, 0.5, 0.5, 1, 1, 1, 2))
    else:
        node = rng.choice(nodes)
    cpus = _draw_up_to(rng, node.cpus, (0.5, 1, 1, 1, 2))
    own = Amounts(cpus=cpus, gpus=gpus)
    form = rng.choices(("omitted", "argument", "with_resources", "bundles"), (2, 4, 2, 2))[0]
    if form == "omitted" and not uses_gpus:
        return Request(bundles=(Amounts(cpus=1),), way="omitted")
    if form == "bundles":
        own = own.model_copy(update={"cpus": min(own.cpus, 1)})
        driver = Amounts(cpus=rng.choice((0.5, 1)))
        is_by_config = by_config and rng.random() < 0.4
        return Request(bundles=(driver, own), way="with_resources", by_config=is_by_config)
    if form == "with_resources":
        is_by_config = by_config and cpus <= 1 and rng.random() < 0.6
        return Request(bundles=(own,), way="with_resources", by_config=is_by_config)
    return Request(bundles=(own,))


def _draw_up_to(rng: random.Random, most: float, amounts: Sequence[float]) -> float:
    return rng.choice([amount for amount in amounts if amount <= most])


def _draw_joins(rng: random.Random, nodes: tuple[Amounts, ...]) -> tuple[Join, ...]:
    if rng.random() < 0.75:
        return ()
    return (Join(at_s=rng.uniform(0.5, 6), node=rng.choice(nodes)),)


def _draw_leaves(rng: random.Random, nodes: tuple[Amounts, ...], request: Request) -> tuple[Leave, ...]:
    stays = nodes[0].gpus >= request.largest.gpus and nodes[0].cpus >= request.largest.cpus
    if len(nodes) == 1 or not stays or rng.random() < 0.7:
        return ()
    return (Leave(at_s=rng.uniform(1, 6), node=rng.randrange(1, len(nodes))),)


def _draw_holds(rng: random.Random, nodes: tuple[Amounts, ...], request: Request) -> tuple[Hold, ...]:
    holds: list[Hold] = []
    for _ in range(rng.choices((0, 1, 2), (4, 4, 2))[0]):
        node = rng.choice(nodes)
        gpus = _draw_up_to(rng, node.gpus, (0, 0.5, 1, 1, 2))
        fewest_cpus = 0 if gpus else 1
        cpus = rng.randint(fewest_cpus, int(node.cpus) - 1)
        # Resources that are never released must leave room for a trial.
        others = list(nodes)
        others.remove(node)
        needs = request.largest
        has_room = any(other.gpus >= needs.gpus and other.cpus >= needs.cpus for other in others)
        is_kept = not holds and has_room and rng.random() < 0.6
        later_s = 0 if is_kept else rng.uniform(0.5, 4)
        from_s = rng.choice((0, 0, later_s))
        until_s = None if is_kept else from_s + rng.uniform(2, 8)
        owner = rng.choice(("actor", "actor", "placement group", "job"))
        holds.append(Hold(owner=owner, amounts=Amounts(cpus=cpus, gpus=gpus), from_s=from_s, until_s=until_s))
    return tuple(holds)


def _draw_failure(rng: random.Random, num_steps: int) -> Failure | None:
    if rng.random() < 0.65:
        return None
    how = rng.choice(("raise", "raise", "kill"))
    return Failure(how=how, at_step=rng.randint(1, num_steps), times=rng.choice((1, 1, 2)), below=0.4)


def _draw_policy(
    rng: random.Random, nodes: tuple[Amounts, ...], request: Request, holds: tuple[Hold, ...], leaves: tuple[Leave, ...]
) -> str:
    names = ["own", "own", "capped"]
    is_single = len(request.bundles) == 1 and not request.by_config
    always_held = all(hold.until_s is None and hold.from_s == 0 for hold in holds)
    if holds and always_held and not leaves:
        names += ["reserving", "free"]
        if request.gpus:
            names += ["reserving", "free-or-cpu"]
    if request.gpus:
        names += ["or-cpu", "or-cpu", "mixed", "mixed"]
    # Policies that choose the CPUs give trials more CPUs than plain Tune if others leave them free.
    if request.gpus and is_single and not any(hold.amounts.cpus for hold in holds):
        names += ["any-cpus"] * 4
        if request.gpus == 1:
            names += ["auto"] * 4
    if request == Request(bundles=(Amounts(cpus=1),)) and not any(node.gpus for node in nodes):
        names.append("auto")
    return rng.choice(names)


def _as_planned(request: Request, nodes: tuple[Amounts, ...]) -> Request:
    """Return the request with the fewest CPUs that a policy without ``cpus`` reserves for it on any node."""
    (own,) = request.bundles
    if not own.gpus:
        return request
    least = math.inf
    for node in nodes:
        if node.gpus < own.gpus:
            continue
        num_trials = node.gpus // own.gpus
        if own.gpus < 1:  # a fraction must fit on one device
            num_trials = node.gpus * (1 // own.gpus)
        least = min(least, node.cpus / num_trials)
    cpus = int(least) if least >= 1 else 0.5
    return request.model_copy(update={"bundles": (own.model_copy(update={"cpus": cpus}),)})


def simpler(program: Program) -> Iterator[Program]:
    """Yield variants of a program, each without one of its features, the largest simplifications first."""
    changes: list[dict[str, Any]] = [{"failure": None, "max_failures": 0}]
    for field in ("holds", "joins", "leaves"):
        events = getattr(program, field)
        for place in range(len(events)):
            changes.append({field: (*events[:place], *events[place + 1 :])})
    needed_limit = program.max_concurrent if program.policy == "capped" else None
    shape_without_reuse = "class" if program.shape == "class-resets" else program.shape
    changes += [
        {"scheduler": "fifo"},
        {"searcher": "grid", "max_concurrent": needed_limit},
        {"max_concurrent": needed_limit},
        {"policy": "own"},
        {"reuse_actors": False, "shape": shape_without_reuse},
        {"shape": "function"},
        {"request": Request(bundles=program.request.bundles[-1:])},
        {"num_trials": 4},
        {"num_steps": 3},
    ]
    last_node = len(program.nodes) - 1
    if last_node > 0 and last_node not in [leave.node for leave in program.leaves]:
        changes.append({"nodes": program.nodes[:-1]})
    by_actors = tuple(hold.model_copy(update={"owner": "actor"}) for hold in program.holds)
    changes.append({"holds": by_actors})
    for change in changes:
        other = program.model_copy(update=change)
        if other != program and (other.saves or other.scheduler not in _PAUSING):
            yield other
