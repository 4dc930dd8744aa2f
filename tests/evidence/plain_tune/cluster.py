"""The Ray cluster of a program, and the events on it: nodes that join and leave, and resources that others hold."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import Any, Final

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from tests.evidence.plain_tune.drawing import Amounts, Hold, Program

# With these settings, Ray detects a dead node within seconds.
_QUICK_HEALTH: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
}
_JOB: Final = """
import ray, sys
from tests.evidence.plain_tune.cluster import Holder
ray.init(address=sys.argv[1], logging_level="ERROR")
actor = Holder.options(num_cpus=float(sys.argv[2]), num_gpus=float(sys.argv[3])).remote()
ray.get(actor.ready.remote())
print("ready", flush=True)
sys.stdin.read()
"""
_TIMEOUT_S: Final = 60.0


@ray.remote(num_cpus=0)
class Holder:
    """An actor of another program."""

    def ready(self) -> bool:
        return True


class Nodes:
    """The nodes of the cluster. The first of them is the head node."""

    def __init__(self, initial: Sequence[Amounts]) -> None:
        self._initial = initial
        head = {"_system_config": _QUICK_HEALTH, **_as_node(initial[0])}
        # Without exit hooks, because nodes that join on a thread cannot set signal handlers.
        self._cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        self.address = str(self._cluster.address)
        self._others: dict[int, Any] = {}
        self._joined: list[Any] = []
        ray.init(address=self.address, logging_level="ERROR", log_to_driver=False)
        self.restore()

    def restore(self) -> None:
        """Restore the initial nodes, and wait until all their resources are free."""
        while self._joined:
            self._cluster.remove_node(self._joined.pop(), allow_graceful=False)
        for place in range(1, len(self._initial)):
            if place not in self._others:
                self._others[place] = self._cluster.add_node(**_as_node(self._initial[place]))
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not self._is_restored():
            if time.monotonic() > deadline_s:
                raise TimeoutError("the cluster did not return to its initial state")
            time.sleep(0.1)

    def _is_restored(self) -> bool:
        num_alive = sum(node["Alive"] for node in ray.nodes())
        return num_alive == len(self._initial) and _is_idle()

    def join(self, node: Amounts) -> None:
        self._joined.append(self._cluster.add_node(wait=False, **_as_node(node)))

    def leave(self, place: int) -> None:
        self._cluster.remove_node(self._others.pop(place), allow_graceful=False)

    def end(self) -> None:
        self._cluster.shutdown()


def _as_node(amounts: Amounts) -> dict[str, Any]:
    amount = {"num_cpus": amounts.cpus, "num_gpus": amounts.gpus, "object_store_memory": 80 * 2**20}
    return {**amount, "include_dashboard": False, "include_log_monitor": False}


def _is_idle() -> bool:
    if any(group["state"] != "REMOVED" for group in placement_group_table().values()):
        return False
    total, free = ray.cluster_resources(), ray.available_resources()
    return all(free.get(name, 0) == total.get(name, 0) for name in ("CPU", "GPU"))


class _OtherProgram:
    """A program that requests resources and releases them later."""

    def __init__(self, hold: Hold, address: str) -> None:
        self._hold, self._address = hold, address
        self._release: Callable[[], object] = int
        self.wait: Callable[[], object] = int

    def request(self) -> None:
        """Request the resources without waiting for them."""
        amounts = self._hold.amounts
        match self._hold.owner:
            case "actor":
                actor = Holder.options(num_cpus=amounts.cpus, num_gpus=amounts.gpus).remote()  # type: ignore[attr-defined]
                self.wait = lambda: ray.get(actor.ready.remote(), timeout=_TIMEOUT_S)
                self._release = partial(ray.kill, actor)
            case "placement group":
                group = placement_group([amounts.bundle])
                self.wait = lambda: ray.get(group.ready(), timeout=_TIMEOUT_S)
                self._release = partial(remove_placement_group, group)
            case "job":
                command = [sys.executable, "-c", _JOB, self._address, str(amounts.cpus), str(amounts.gpus)]
                job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                self.wait = job.stdout.readline  # type: ignore[union-attr]
                self._release = job.kill

    def release(self) -> None:
        release, self._release = self._release, int
        release()


class Events:
    """The events of a program, on a thread of their own. Times are relative to the constructor's end."""

    def __init__(self, program: Program, nodes: Nodes) -> None:
        self._ends = threading.Event()
        self._others = [_OtherProgram(hold, nodes.address) for hold in program.holds]
        timed: list[tuple[float, Callable[[], object]]] = []
        for join in program.joins:
            timed.append((join.at_s, partial(nodes.join, join.node)))
        for leave in program.leaves:
            timed.append((leave.at_s, partial(nodes.leave, leave.node)))
        for hold, other in zip(program.holds, self._others, strict=True):
            if hold.from_s == 0:
                other.request()
                other.wait()
            else:
                timed.append((hold.from_s, other.request))
            if hold.until_s is not None:
                timed.append((hold.until_s, other.release))
        self._timed = sorted(timed, key=itemgetter(0))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start_s = time.monotonic()
        for at_s, event in self._timed:
            if self._ends.wait(max(0.0, start_s + at_s - time.monotonic())):
                return
            event()

    def end(self) -> None:
        """Skip the remaining events, and release what other programs hold."""
        self._ends.set()
        self._thread.join(_TIMEOUT_S)
        for other in self._others:
            with suppress(ray.exceptions.RayError):
                other.release()
