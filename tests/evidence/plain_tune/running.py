"""Runs one program with plain Tune and then under its policy: ``python -m tests.evidence.plain_tune.running FOLDER``.

The folder contains the program, ``program.json``. Both runs use one Ray cluster, and the initial nodes are restored
between them. Each run writes its outcome to the folder. If a run exceeds its deadline, the outcome describes the
trials and everything that is pending in Ray, and the process ends.
"""

import json
import logging
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

import ray
from ray import tune
from ray.tune import schedulers
from ray.tune.search import BasicVariantGenerator, Searcher
from ray.util.placement_group import placement_group_table

from tests.evidence.plain_tune.cluster import Events, Nodes
from tests.evidence.plain_tune.drawing import Program, longest_allowed_s
from tests.evidence.plain_tune.workload import ResettableTraining, Training, train
from tune_policies import run as run_under_policy

PLAIN, POLICY = "plain", "policy"
_PLAIN_DEADLINE_S: Final = 150.0
_GRACE_S: Final = 25.0
"""The time after which a run counts as hanging, in addition to the longest time that the claim allows."""


class Batches(Searcher):  # type: ignore[misc]  # Ray has no types
    """A searcher that suggests three configs, and the next three when the results of these are complete."""

    def __init__(self, seed: int, num_trials: int) -> None:
        super().__init__(metric="total", mode="max")
        self._seed, self._num_trials = seed, num_trials
        self._suggested, self._open = 0, set[str]()

    def suggest(self, trial_id: str) -> Any:
        if self._suggested == self._num_trials:
            return Searcher.FINISHED
        if self._open and self._suggested % 3 == 0:
            return None
        self._suggested += 1
        self._open.add(trial_id)
        return {"x": (self._seed * 7 + self._suggested * 13) % 97 / 97, "y": 1 + self._suggested % 3}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self._open.discard(trial_id)


class SeenTrials(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Keeps the list of trials, so that another thread can describe them."""

    def __init__(self) -> None:
        self.trials: list[Any] = []

    def on_step_begin(self, iteration: int, trials: list[Any], **_: Any) -> None:
        self.trials = trials


def _scheduler(program: Program) -> Any:
    match program.scheduler:
        case "asha":
            return schedulers.ASHAScheduler(max_t=program.num_steps, reduction_factor=2)
        case "median":
            return schedulers.MedianStoppingRule("training_iteration", grace_period=1, min_samples_required=2)
        case "hyperband":
            return schedulers.HyperBandScheduler(max_t=program.num_steps, reduction_factor=2)
        case "pbt" | "pbt-synch":
            is_synch = program.scheduler == "pbt-synch"
            mutations = {"y": [1, 2, 3]}
            return schedulers.PopulationBasedTraining(
                "training_iteration", perturbation_interval=2, hyperparam_mutations=mutations, synch=is_synch
            )
        case "resource-changing":
            return schedulers.ResourceChangingScheduler()
    return schedulers.FIFOScheduler()


def _search(program: Program, most: int | None) -> dict[str, Any]:
    space: dict[str, Any] = {"x": tune.uniform(0, 1), "y": tune.choice([1, 2, 3])}
    count = {"num_samples": program.num_trials}
    match program.searcher:
        case "grid" | "random":
            if program.searcher == "grid":
                points = [place / program.num_trials for place in range(program.num_trials)]
                space["x"] = tune.grid_search(points)
                count = {"num_samples": 1}
            variants = BasicVariantGenerator(random_state=program.seed, max_concurrent=most or 0)
            return {"config": space, "search_alg": variants, **count}
        case "optuna":
            from ray.tune.search.optuna import OptunaSearch

            searcher: Any = OptunaSearch(seed=program.seed)
        case "hyperopt":
            from ray.tune.search.hyperopt import HyperOptSearch

            searcher = HyperOptSearch(n_initial_points=3, random_state_seed=program.seed)
        case _:
            space, searcher = {"x": 0.0, "y": 1}, Batches(program.seed, program.num_trials)
    return {"config": space, "search_alg": searcher, "max_concurrent_trials": most, **count}


def _trainable(program: Program) -> Any:
    function_or_class: Any = {"class": Training, "class-resets": ResettableTraining}.get(program.shape, train)
    if program.request.way != "with_resources":
        return function_or_class
    bundles = [bundle.bundle for bundle in program.request.bundles]
    if not program.request.by_config:
        return tune.with_resources(function_or_class, tune.PlacementGroupFactory(bundles))
    large = [*bundles, bundles[-1]]
    if len(bundles) == 1:
        large = [{**bundles[0], "CPU": 2 * bundles[0]["CPU"]}]

    def request(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        if config["y"] == 3:
            return tune.PlacementGroupFactory(large)
        return tune.PlacementGroupFactory(bundles)

    return tune.with_resources(function_or_class, request)


def _run(program: Program, way: str, folder: Path, seen: SeenTrials) -> list[Any]:
    most = program.max_concurrent
    if way == POLICY and program.policy == "capped":  # CappedPolicy replaces the limit of plain Tune
        most = None
    arguments = _search(program, most)
    failure = program.failure.model_dump() if program.failure else None
    arguments["config"] |= {
        "folder": str(folder / f"{way}-trials"),
        "failure": failure,
        "num_steps": program.num_steps,
        "step_s": program.step_s,
        "saves": program.saves,
    }
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
    found = []
    for trial in trials:
        result = trial.last_result or {}
        state = {
            "x": round(trial.config["x"], 6),
            "y": trial.config["y"],
            "status": trial.status,
            "failures": trial.num_failures,
            "steps_done": result.get("steps_done", 0),
            "total": result.get("total", 0),
        }
        found.append(state)
    return found


def _describe_pending(trials: list[Any]) -> dict[str, Any]:
    """Return what the trials request, and what is free, reserved and pending in Ray."""
    groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    return {
        "requests": [f"{trial.status}: {trial.placement_group_factory.bundles}" for trial in trials],
        "nodes": [node["Resources"] for node in ray.nodes() if node["Alive"]],
        "free": ray.available_resources(),
        "groups": [f"{group['state']}: {list(group['bundles'].values())}" for group in groups],
    }


def _run_once(program: Program, way: str, folder: Path, nodes: Nodes, deadline_s: float) -> float | None:
    """Run the program, write the outcome, and return the seconds, or ``None`` if the run raised an error."""
    (folder / f"{way}-trials").mkdir()
    seen = SeenTrials()
    events = Events(program, nodes)
    start_s = time.monotonic()

    def write(seconds: float, **outcome: Any) -> None:
        outcome = {"seconds": round(seconds, 2), "error": None, **outcome}
        outcome["processes"] = len([*(folder / f"{way}-trials").glob("process-*")])
        (folder / f"{way}.json").write_text(json.dumps(outcome))

    def give_up() -> None:
        print(f"=== {way} exceeded its deadline of {deadline_s:.0f} s", file=sys.stderr)
        traceback.print_stack(sys._current_frames()[threading.main_thread().ident or 0])
        try:
            write(deadline_s, error="hang", trials=_describe(seen.trials), pending=_describe_pending(seen.trials))
        finally:
            sys.stderr.flush()
            os._exit(0)  # the parent process kills the cluster

    watchdog = threading.Timer(deadline_s, give_up)
    watchdog.daemon = True
    watchdog.start()
    try:
        trials = _run(program, way, folder, seen)
        seconds = time.monotonic() - start_s
        write(seconds, trials=_describe(trials))
        return seconds
    except Exception as error:  # noqa: BLE001 the comparison reports each error
        write(time.monotonic() - start_s, error=f"{type(error).__name__}: {error}", trials=_describe(seen.trials))
        traceback.print_exc()
        return None
    finally:
        watchdog.cancel()
        events.end()


def main(folder: Path) -> None:
    """Run the program in ``folder`` with plain Tune and, if that ends, under its policy."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(relativeCreated)d %(name)s %(message)s")
    logging.getLogger("tune_policies").setLevel(logging.DEBUG)
    program = Program.model_validate_json((folder / "program.json").read_text())
    nodes = Nodes(program.nodes)
    try:
        plain_s = _run_once(program, PLAIN, folder, nodes, _PLAIN_DEADLINE_S)
        if plain_s is not None:
            nodes.restore()
            print("=== policy", file=sys.stderr, flush=True)
            _run_once(program, POLICY, folder, nodes, longest_allowed_s(plain_s) + _GRACE_S)
    finally:
        ray.shutdown()
        nodes.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
