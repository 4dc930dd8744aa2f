"""Computes how many nodes without GPUs finish the trials as fast as one GPU, and how many cost at most as much.

The GPU runs the trials one after the other, or several at once if they share it. A node runs as many concurrent trials
as its CPUs allow. All nodes are charged until the last trial ends. The comparison assumes that a trial is as fast on a
full node as in the measurement.
"""

import math
from typing import Final, NamedTuple

from pydantic import Field

from tune_policies.plan.benchmark_decision import GpuOrNodes
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import PositiveCount, to_ticks
from tune_policies.values.value import Value

MOST_TRIALS: Final = 100_000
"""The maximum number of trials. This limit bounds the duration of the search for the number of nodes."""

_ROUNDING: Final = 1e-9
"""Times or costs count as equal if their relative difference is at most this value."""


class NodesQuestion(Value):
    """The parameters of the comparison of one GPU with additional nodes without GPUs.

    Attributes:
        num_trials: The number of trials of the whole run.
        node_cpus: The number of CPUs of a node. By default, the CPUs of the cluster's largest node without GPUs.
    """

    num_trials: PositiveCount = Field(le=MOST_TRIALS)
    node_cpus: PositiveCount | None = None


class Nodes(NamedTuple):
    """Nodes without GPUs, all of the same size, that run the trials.

    Attributes:
        num_trials: The number of trials of the whole run.
        node_cpus: The number of CPUs of a node.
        trial_cpus: The number of CPUs of a trial.
        price: The price of a node per hour, or ``None`` if unknown.
    """

    num_trials: int
    node_cpus: int
    trial_cpus: float
    price: float | None = None

    @property
    def trials_per_node(self) -> int:
        """The number of concurrent trials on a node."""
        return to_ticks(self.node_cpus) // to_ticks(self.trial_cpus)

    def against_gpu(
        self, *, cpu_trial_s: float, gpu_trial_s: float, speedups: tuple[float, float], gpu_price: float | None = None
    ) -> GpuOrNodes:
        """Return the time and cost of the trials on one GPU and on these nodes, and the number of nodes.

        Args:
            cpu_trial_s: The time of a trial on the CPU, in seconds.
            gpu_trial_s: The mean time per trial on the GPU, in seconds. If trials share the GPU, this time is shorter
                than the duration of a trial.
            speedups: The lower and upper end of the confidence interval of ``cpu_trial_s / gpu_trial_s``.
            gpu_price: The price per hour of the GPU and the CPUs of all trials that share it, or ``None`` if unknown.

        Raises:
            InvalidResourcesError: A node has fewer CPUs than a trial.
        """
        if not self.trials_per_node:
            raise InvalidResourcesError(
                f"a node with {self.node_cpus} CPUs is too small for a trial, because trials were measured with "
                f"{self.trial_cpus:g} CPUs. Pass --node-cpus {math.ceil(self.trial_cpus)} or more"
            )
        gpu_s = self.num_trials * gpu_trial_s
        number = self._fewest(cpu_trial_s, gpu_s)
        # A speed-up times the GPU's time is a time on the CPU, so the ends of the interval give those of the number.
        low, high = (self._fewest(speedup * gpu_trial_s, gpu_s) for speedup in speedups)
        nodes_s = nodes_cost = gpu_cost = as_cheap_up_to = None
        if number is not None:
            nodes_s = self._seconds(number, cpu_trial_s)
            nodes_cost = self._cost(number, cpu_trial_s)
        if gpu_price is not None:
            gpu_cost = gpu_price * gpu_s / 3600
            as_cheap_up_to = self._most(cpu_trial_s, gpu_cost)
        return GpuOrNodes(
            num_trials=self.num_trials,
            node_cpus=self.node_cpus,
            trials_per_node=self.trials_per_node,
            gpu_s=gpu_s,
            gpu_cost=gpu_cost,
            num_nodes=number,
            low=low,
            high=high,
            nodes_s=nodes_s,
            nodes_cost=nodes_cost,
            as_cheap_up_to=as_cheap_up_to,
        )

    def _seconds(self, number: int, trial_s: float) -> float:
        return math.ceil(self.num_trials / (number * self.trials_per_node)) * trial_s

    def _cost(self, number: int, trial_s: float) -> float | None:
        if self.price is None:
            return None
        return number * self.price * self._seconds(number, trial_s) / 3600

    def _fewest(self, trial_s: float, deadline_s: float) -> int | None:
        """Return the smallest number of nodes that meet the deadline, or ``None`` if a single trial takes longer."""
        # The number of trials that a place on a node runs one after the other before the deadline.
        in_turn = math.floor(deadline_s / trial_s * (1 + _ROUNDING))
        if not in_turn:
            return None
        return math.ceil(self.num_trials / (in_turn * self.trials_per_node))

    def _most(self, trial_s: float, cost: float) -> int | None:
        """Return the largest number of busy nodes that cost at most ``cost``, or ``None`` if one node costs more."""
        # More nodes than this would not be busy. The search begins with the largest number, because the cost does not
        # grow evenly: another node can save a whole turn.
        numbers = range(math.ceil(self.num_trials / self.trials_per_node), 0, -1)
        limit = cost * (1 + _ROUNDING)
        for number in numbers:
            nodes_cost = self._cost(number, trial_s)
            if nodes_cost is not None and nodes_cost <= limit:
                return number
        return None
