"""Whether the crossover of synthetic devices of known cost is found, and at which part of the cost of a full sweep."""

import random
import statistics
from collections.abc import Sequence
from math import ceil, exp, log2
from typing import Final, NamedTuple

from tune_policies.benchmarks.compare.judge import Comparison, Outcome, compare_arms
from tune_policies.benchmarks.decide.crossover import powers_of_two, search
from tune_policies.benchmarks.decide.decide import crossover
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.plan.decision import Answer

from .proof import wilson_interval
from .proof_report import count

SIZES: Final = powers_of_two(1, 2**13)
NUM_ROUNDS: Final = 5
MOST_COST: Final = 0.25
"""Of what all sizes in all rounds would cost, in processes."""
MOST_OFF: Final = 1
"""By how many powers of two what is found may lie off the truth."""
_BLOCKS: Final = 5
_ANSWERS: Final[dict[Outcome, Answer]] = {
    Outcome.FIRST: "CPU",
    Outcome.SECOND: "GPU",
    Outcome.SAME: "same",
    Outcome.AMBIGUOUS: "ambiguous",
}


class Cost(NamedTuple):
    """What a step of size n takes: ``fixed_s + per_unit_s * n`` seconds."""

    fixed_s: float
    per_unit_s: float

    def seconds(self, size: int) -> float:
        """Return how long a step of this size takes."""
        return self.fixed_s + self.per_unit_s * size


class Search(NamedTuple):
    """How one search came out.

    Attributes:
        truth: The size at which both devices take the same time.
        found: The smallest size from which on the GPU is the answer; ``None``: for none.
        cost: Processes that were started, as a part of those of the full sweep.
    """

    truth: float
    found: int | None
    cost: float

    @property
    def powers_off(self) -> float:
        """By how many powers of two what was found lies off the smallest one at which the GPU is faster."""
        return float("inf") if self.found is None else abs(log2(self.found) - ceil(log2(self.truth)))

    @property
    def is_met(self) -> bool:
        """Whether it was found, and cheaply."""
        return self.powers_off <= MOST_OFF and self.cost <= MOST_COST


def search_at_random(seed: int) -> Search:
    """Return how a search comes out where the GPU takes longer to start, and less for a unit; the times have noise."""
    draw = random.Random(seed)
    truth = 2 ** draw.uniform(1, log2(SIZES[-1]) - 2)
    per_unit_s = 10 ** draw.uniform(-7, -4)
    # At the crossover the size must matter, or both devices would take the same time over a wide range of sizes.
    cpu = Cost(truth * per_unit_s * draw.uniform(0, 0.25), per_unit_s)
    gpu_per_unit_s = cpu.per_unit_s / draw.uniform(3, 30)
    gpu = Cost(cpu.fixed_s + truth * (cpu.per_unit_s - gpu_per_unit_s), gpu_per_unit_s)
    started: dict[int, int] = {}

    def measure(size: int, num_rounds: int) -> Comparison:
        started[size] = max(started.get(size, 0), num_rounds)
        return compare_arms(*(_times(cost.seconds(size), num_rounds, draw) for cost in (cpu, gpu)))

    found = search(measure, SIZES, NUM_ROUNDS)
    answers = {size: _ANSWERS[each.comparison.outcome] for size, each in found.items() if each.comparison}
    return Search(truth, crossover(answers).at, sum(started.values()) / (len(SIZES) * NUM_ROUNDS))


def print_searches(searches: Sequence[Search]) -> bool:
    """Print how near the searches came, and at what cost; return whether all keep the limits."""
    costs, off = [each.cost for each in searches], [each.powers_off for each in searches]
    met = count(searches, lambda each: each.is_met)
    low, high = wilson_interval(met, len(searches))
    print(
        f"{met} of {len(searches)} searches ({low:.1%} to {high:.1%}) found the crossover within a power of two at no"
    )
    print(f"more than {MOST_COST:.0%} of the processes of a full sweep of {len(SIZES)} sizes in {NUM_ROUNDS} rounds.")
    print(f"cost: {statistics.median(costs):.1%}, at most {max(costs):.1%}; powers of two off: at most {max(off):.2f}")
    print(f"{describe_machine('numpy')}\ncommand: {own_command()}")
    return met == len(searches)


def _times(step_s: float, num_rounds: int, draw: random.Random) -> dict[int, tuple[float, ...]]:
    def process() -> tuple[float, ...]:
        own = draw.gauss(0, 0.01)
        return tuple(step_s * exp(own + draw.gauss(0, 0.02)) for _ in range(_BLOCKS))

    return {number: process() for number in range(num_rounds)}
