"""``LearningPolicy``, which plans and learns with its own code."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from tune_policies import ClusterCapacity, GpuDevice, LearningPolicy, NodeCapacity, ResourcePolicy, Resources
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation
from tune_policies.trainers.scheduling.limit_by_progress import RunAdmission

from ..simulation import GIB, Machine, Request, SimTrial


def capacity_of(machine: Machine) -> ClusterCapacity:
    """Return the machine as a cluster, with one node for each GPU, or one node without GPUs."""
    if not machine.gpus_gib:
        resources = Resources(cpus=machine.cpus, memory_bytes=int(machine.host_gib * GIB))
        return ClusterCapacity.of(NodeCapacity(node_id="cpu", resources=resources))
    number = len(machine.gpus_gib)
    nodes = []
    for i, gib in enumerate(machine.gpus_gib):
        device = GpuDevice(index=0, uuid=f"GPU-{i}", name=f"{gib:g} GiB", memory_bytes=int(gib * GIB))
        resources = Resources(cpus=machine.cpus // number, gpus=1, memory_bytes=int(machine.host_gib / number * GIB))
        nodes.append(NodeCapacity(node_id=f"node-{i}", resources=resources, devices=(device,)))
    return ClusterCapacity.of(*nodes)


class RunProgress(RunAdmission):
    """The progress of a simulated run on a cluster that stays the same."""

    def __init__(self, capacity: ClusterCapacity) -> None:
        super().__init__(capacity)
        self._all = capacity

    def most_at_once(self) -> int | None:
        """Return how many trials may run at once, or ``None``."""
        return self.limit(self._all)


class Learning:
    """Feeds observations to a ``LearningPolicy``, and plans again when it has learned.

    ``cpu_s`` is the CPU time of learning and of planning again, in seconds.
    """

    progress: RunProgress

    def __init__(self, name: str, start: ResourcePolicy | None = None) -> None:
        self.name, self.start = name, start

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        self.policy = LearningPolicy() if self.start is None else LearningPolicy(self.start)
        self.capacity, self.devices = capacity_of(machine), sorted(set(machine.gpus_gib))
        self.host_gib = machine.host_gib
        self.progress = RunProgress(self.capacity)
        self.plan = self.policy.plan(self.capacity)
        self.cpu_s = 0.0
        self.too_little: dict[int, TrialNeed] = {}
        self.own: dict[int, TrialNeed] = {}

    def requests(self, index: int, config: dict[str, Any], failed: Sequence[Request]) -> list[Request]:
        slots = [self.plan.slot_for(config)] if self.plan.by_config or len(self.plan.slots) == 1 else self.plan.slots
        found = []
        for slot in slots:
            worker, device_gib = slot.worker, 0.0
            host_gib, gpu = (worker.memory_bytes or 0) / GIB, float(worker.gpus)
            if gpu and slot.gpu_memory_bytes:
                wanted = slot.gpu_memory_bytes / GIB / gpu
                device_gib = min((gib for gib in self.devices if gib >= wanted * 0.99), default=self.devices[-1])
            if failed or index in self.own:
                gpu, host_gib = self._raised(index, config, gpu, host_gib, device_gib, failed)
            found.append(Request(worker.cpus, host_gib, gpu, device_gib))
        return found

    def _raised(
        self,
        index: int,
        config: dict[str, Any],
        gpu: float,
        host_gib: float,
        device_gib: float,
        failed: Sequence[Request],
    ) -> tuple[float, float]:
        too_little = self.too_little.get(index, TrialNeed())
        if self.policy.needs is None:
            gpu = min(1.0, 2 * max((request.gpu for request in failed), default=gpu / 2))
            return gpu, max(host_gib, 2 * (too_little.host_memory_bytes or 0) / GIB)
        need = self.policy.needs.need_after(config, too_little) | self.own.get(index, TrialNeed())
        if gpu and need.gpu_memory_bytes and device_gib:
            wanted = need.gpu_memory_bytes / GIB
            gpu = max(gpu, 1 / max(1, int(device_gib / wanted)))
        host_gib = max(host_gib, (need.host_memory_bytes or 0) / GIB)
        return gpu, min(self.host_gib, host_gib)

    def observe(self, observation: TrialObservation) -> bool:
        index = int(observation.trial_id)
        used = observation.used
        self.own[index] = TrialNeed(
            host_memory_bytes=used.host_memory_bytes,
            gpu_memory_bytes=used.gpu_memory_bytes,
        )
        if observation.ran_out:
            self.too_little[index] = self.too_little.get(index, TrialNeed()) | observation.too_little
            observation = observation.model_copy(update={"too_little": self.too_little[index]})
        begin_s = time.process_time()
        before, self.policy = self.policy, self.policy.learn([observation])
        has_learned = self.policy.needs != before.needs
        if has_learned:
            num_allowed = self.plan.min_concurrent_trials
            self.plan = self.policy.plan(self.capacity)
            self.progress.begin(self.policy, num_allowed)
        self.cpu_s += time.process_time() - begin_s
        return has_learned


RULES = [partial(Learning, "LearningPolicy")]
