"""Runs one program with plain Tune and then under its policy: ``python -m tests.evidence.plain_tune.running FOLDER``.

The folder contains the program, ``program.json``. Both runs use one Ray cluster, and the initial nodes are restored
between them. Each run writes its outcome to the folder. If a run exceeds its deadline, the outcome describes the
trials and everything that is pending in Ray, and the process ends.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import ray
from ray import tune
from ray.cluster_utils import Cluster
from ray.tune import schedulers
from ray.tune.search import BasicVariantGenerator, Searcher
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from tests.evidence.plain_tune import workload
from tests.evidence.plain_tune.drawing import Amounts, Hold, Program
from tune_policies import run as run_under_policy

PLAIN, POLICY = "plain", "policy"
PLAIN_DEADLINE_S: Final = 150.0
_GRACE_S: Final = 25.0
"""The time after which a run counts as hanging, in addition to the longest time that the claim allows."""
_QUICK_HEALTH: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
}
_JOB: Final = (
    "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR')\n"
    "holder = ray.remote(type('Holder', (), {'ready': lambda self: 1}))\n"
    "actor = holder.options(num_cpus=float(sys.argv[2]), num_gpus=float(sys.argv[3])).remote()\n"
    "ray.get(actor.ready.remote()); print('ready', flush=True); sys.stdin.read()\n"
)


def longest_allowed_s(plain_s: float) -> float:
    """Return how long a run under a policy may take, in seconds, if plain Tune takes ``plain_s``."""
    return 1.1 * plain_s + 5


@ray.remote(num_cpus=0)
class Holder:
    """An actor of another program."""

    def ready(self) -> bool:
        """Return when the actor runs."""
        return True


class Nodes:
    """The Ray cluster of a program."""

    def __init__(self, program: Program) -> None:
        self._initial = program.nodes
        head = {"_system_config": _QUICK_HEALTH, **_as_node(program.nodes[0])}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
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
        _wait_until(lambda: sum(node["Alive"] for node in ray.nodes()) == len(self._initial), 40)
        _wait_until(_is_idle, 20)

    def join(self, node: Amounts) -> None:
        """Add a node."""
        self._joined.append(self._cluster.add_node(wait=False, **_as_node(node)))

    def leave(self, place: int) -> None:
        """Kill an initial node."""
        if place in self._others:
            self._cluster.remove_node(self._others.pop(place), allow_graceful=False)

    def end(self) -> None:
        """Kill all processes of the cluster."""
        self._cluster.shutdown()


def _as_node(amounts: Amounts) -> dict[str, Any]:
    amount = {"num_cpus": amounts.cpus, "num_gpus": amounts.gpus, "object_store_memory": 80 * 2**20}
    return {**amount, "include_dashboard": False, "include_log_monitor": False}


def _is_idle() -> bool:
    if any(group["state"] not in ("REMOVED", "INFEASIBLE") for group in placement_group_table().values()):
        return False
    total, free = ray.cluster_resources(), ray.available_resources()
    return all(free.get(name, 0) == total.get(name, 0) for name in ("CPU", "GPU"))


def _wait_until(is_met: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_met():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the cluster did not reach its initial state within {timeout_s:g} s")
        time.sleep(0.1)


class OtherProgram:
    """A program that requests resources and releases them later."""

    def __init__(self, hold: Hold, address: str) -> None:
        self._hold, self._address = hold, address
        self._release: Callable[[], object] = int
        self._wait: Callable[[], object] = int

    def request(self) -> None:
        """Request the resources without waiting for them."""
        amounts = self._hold.amounts
        match self._hold.owner:
            case "actor":
                actor = Holder.options(num_cpus=amounts.cpus, num_gpus=amounts.gpus).remote()  # type: ignore[attr-defined]
                self._wait = lambda: ray.get(actor.ready.remote(), timeout=40)
                self._release = lambda: ray.kill(actor)
            case "placement group":
                group = placement_group([amounts.bundle])
                self._wait = lambda: ray.get(group.ready(), timeout=40)
                self._release = lambda: remove_placement_group(group)
            case "job":
                command = [sys.executable, "-c", _JOB, self._address, str(amounts.cpus), str(amounts.gpus)]
                job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                assert job.stdout is not None
                self._wait = job.stdout.readline
                self._release = job.kill

    def wait(self) -> None:
        """Wait until the program holds the resources."""
        self._wait()

    def release(self) -> None:
        """Release the resources."""
        release, self._release = self._release, int
        release()


class Events:
    """The events of a program, on a thread of their own."""

    def __init__(self, program: Program, nodes: Nodes) -> None:
        self._ends = threading.Event()
        self._others = [OtherProgram(hold, nodes.address) for hold in program.holds]
        timed: list[tuple[float, Callable[[], object]]] = []
        timed += [(join.at_s, lambda join=join: nodes.join(join.node)) for join in program.joins]  # type: ignore[misc]
        timed += [(leave.at_s, lambda leave=leave: nodes.leave(leave.node)) for leave in program.leaves]  # type: ignore[misc]
        for hold, other in zip(program.holds, self._others, strict=True):
            if hold.from_s == 0:
                other.request()
                other.wait()
            else:
                timed.append((hold.from_s, other.request))
            if hold.until_s is not None:
                timed.append((hold.until_s, other.release))
        self._timed = sorted(timed, key=lambda event: event[0])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        start_s = time.monotonic()
        for at_s, event in self._timed:
            if self._ends.wait(max(0.0, start_s + at_s - time.monotonic())):
                return
            with suppress(Exception):
                event()

    def end(self) -> None:
        """Stop, and release what other programs hold."""
        self._ends.set()
        self._thread.join(40)
        for other in self._others:
            with suppress(Exception):
                other.release()


class Batches(Searcher):  # type: ignore[misc]  # Ray has no types
    """A searcher that suggests three configs, and the next three when the results of these are complete."""

    def __init__(self, seed: int, num_trials: int) -> None:
        super().__init__(metric="total", mode="max")
        self._seed, self._num_trials = seed, num_trials
        self._suggested, self._open = 0, set[str]()

    def suggest(self, trial_id: str) -> Any:
        """Return a config, ``None`` while a batch runs, or ``FINISHED``."""
        if self._suggested == self._num_trials:
            return Searcher.FINISHED
        if self._open and self._suggested % 3 == 0:
            return None
        self._suggested += 1
        self._open.add(trial_id)
        return {"x": (self._seed * 7 + self._suggested * 13) % 97 / 97, "y": 1 + self._suggested % 3}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Record that a trial is complete."""
        self._open.discard(trial_id)


class Seen(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Keeps the list of trials."""

    def __init__(self) -> None:
        self.trials: list[Any] = []

    def on_step_begin(self, iteration: int, trials: list[Any], **_: Any) -> None:
        """Keep the trials of the run."""
        self.trials = trials


def _scheduler(program: Program) -> Any:
    attr = {"time_attr": "training_iteration"}
    match program.scheduler:
        case "asha":
            return schedulers.ASHAScheduler(max_t=program.num_steps, grace_period=1, reduction_factor=2, **attr)
        case "median":
            return schedulers.MedianStoppingRule(grace_period=1, min_samples_required=2, **attr)
        case "hyperband":
            return schedulers.HyperBandScheduler(max_t=program.num_steps, reduction_factor=2, **attr)
        case "pbt" | "pbt-synch":
            return schedulers.PopulationBasedTraining(
                perturbation_interval=2,
                hyperparam_mutations={"y": [1, 2, 3]},
                synch=program.scheduler == "pbt-synch",
                **attr,
            )
        case "resource-changing":
            return schedulers.ResourceChangingScheduler()
    return schedulers.FIFOScheduler()


def _search(program: Program, *, is_capped: bool) -> dict[str, Any]:
    most = None if is_capped else program.max_concurrent
    space: dict[str, Any] = {"x": tune.uniform(0, 1), "y": tune.choice([1, 2, 3])}
    count = {"num_samples": program.num_trials}
    match program.searcher:
        case "grid":
            grid = tune.grid_search([place / program.num_trials for place in range(program.num_trials)])
            search = BasicVariantGenerator(random_state=program.seed, max_concurrent=most or 0)
            return {"config": {**space, "x": grid}, "search_alg": search, "num_samples": 1}
        case "random":
            search = BasicVariantGenerator(random_state=program.seed, max_concurrent=most or 0)
            return {"config": space, "search_alg": search, **count}
        case "optuna":
            from ray.tune.search.optuna import OptunaSearch

            found: Any = OptunaSearch(seed=program.seed)
        case "hyperopt":
            from ray.tune.search.hyperopt import HyperOptSearch

            found = HyperOptSearch(n_initial_points=3, random_state_seed=program.seed)
        case _:
            space, found = {}, Batches(program.seed, program.num_trials)
    return {"config": space, "search_alg": found, "max_concurrent_trials": most, **count}


def _trainable(program: Program) -> Any:
    plain: Any = {"class": workload.Training, "class-resets": workload.ResettableTraining}.get(
        program.shape, workload.train
    )
    if program.request.way != "with_resources":
        return plain
    bundles = [bundle.bundle for bundle in program.request.bundles]

    def request(config: dict[str, Any]) -> Any:
        if not program.request.by_config or config["y"] != 3:
            return tune.PlacementGroupFactory(bundles)
        if len(bundles) > 1:
            return tune.PlacementGroupFactory([*bundles, bundles[-1]])
        return tune.PlacementGroupFactory([{**bundles[0], "CPU": 2 * bundles[0]["CPU"]}])

    return tune.with_resources(plain, request if program.request.by_config else request({"y": 1}))


def _tune(program: Program, way: str, folder: Path, seen: Seen) -> list[Any]:
    is_capped = way == POLICY and program.policy == "capped"
    arguments = _search(program, is_capped=is_capped)
    state = folder / f"{way}-failures"
    state.mkdir()
    failure = program.failure.model_dump() if program.failure else None
    arguments["config"] |= {
        "folder": str(state),
        "failure": failure,
        "num_steps": program.num_steps,
        "step_s": program.step_s,
        "saves": program.saves,
    }
    if program.searcher == "batches":  # a searcher that suggests configs gets the constants from the trainable
        arguments["config"] |= {"x": 0.0, "y": 1}
    arguments |= {
        "metric": "total",
        "mode": "max",
        "scheduler": _scheduler(program),
        "reuse_actors": program.reuse_actors,
        "max_failures": program.max_failures,
        "raise_on_failed_trial": False,
        "storage_path": str(folder / "results"),
        "name": way,
        "verbose": 0,
        "callbacks": [seen],
    }
    if program.shape.startswith("class"):
        arguments["checkpoint_config"] = tune.CheckpointConfig(checkpoint_frequency=1)
    if way == POLICY:
        return list(run_under_policy(_trainable(program), program.resource_policy(), **arguments).trials)
    if program.request.way == "argument":
        (own,) = program.request.bundles
        arguments["resources_per_trial"] = {"cpu": own.cpus, "gpu": own.gpus}
    return list(tune.run(_trainable(program), **arguments).trials)


def _describe(trials: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "x": round(trial.config["x"], 6),
            "y": trial.config["y"],
            "status": trial.status,
            "failures": trial.num_failures,
            "steps_done": (trial.last_result or {}).get("steps_done", 0),
            "total": (trial.last_result or {}).get("total", 0),
        }
        for trial in trials
    ]


def _pending(trials: list[Any]) -> dict[str, Any]:
    """Return what the trials request, and what is free, in use and pending in Ray."""
    groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return {
        "requests": [f"{trial.status}: {trial.placement_group_factory.bundles}" for trial in trials],
        "nodes": [node["Resources"] for node in ray.nodes() if node["Alive"]],
        "free": ray.available_resources(),
        "groups": [f"{group['state']}: {list(group['bundles'].values())}" for group in groups],
    }


def run_once(program: Program, way: str, folder: Path, nodes: Nodes, deadline_s: float) -> float | None:
    """Run the program, write the outcome, and return the seconds, or ``None`` if the run raised an error."""
    seen = Seen()
    events = Events(program, nodes)
    start_s = time.monotonic()

    def write(**outcome: Any) -> None:
        outcome = {"seconds": round(time.monotonic() - start_s, 2), "error": None, **outcome}
        (folder / f"{way}.json").write_text(json.dumps(outcome))

    def give_up() -> None:
        print(f"=== {way} exceeded its deadline of {deadline_s:.0f} s", file=sys.stderr, flush=True)
        traceback.print_stack(sys._current_frames()[threading.main_thread().ident or 0])
        try:
            write(error="hang", trials=_describe(seen.trials), pending=_pending(seen.trials))
        finally:
            sys.stderr.flush()
            os._exit(0)  # the parent process kills the cluster

    watchdog = threading.Timer(deadline_s, give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        trials = _tune(program, way, folder, seen)
    except Exception as error:  # noqa: BLE001 the comparison reports each error
        watchdog.cancel()
        write(error=f"{type(error).__name__}: {error}", trials=_describe(seen.trials))
        traceback.print_exc()
        events.end()
        return None
    watchdog.cancel()
    write(trials=_describe(trials))
    seconds = time.monotonic() - start_s
    events.end()
    return seconds


def main(folder: Path) -> None:
    """Run the program in ``folder`` with plain Tune and, if that ends, under its policy."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(relativeCreated)d %(name)s %(message)s")
    logging.getLogger("tune_policies").setLevel(logging.DEBUG)
    program = Program.model_validate_json((folder / "program.json").read_text())
    nodes = Nodes(program)
    try:
        plain_s = run_once(program, PLAIN, folder, nodes, PLAIN_DEADLINE_S)
        if plain_s is not None:
            nodes.restore()
            print("=== policy", file=sys.stderr, flush=True)
            run_once(program, POLICY, folder, nodes, longest_allowed_s(plain_s) + _GRACE_S)
    finally:
        ray.shutdown()
        nodes.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
