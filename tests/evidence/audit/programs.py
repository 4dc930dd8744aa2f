"""Small programs of plain Tune, in which trials reserve more than they use.

``python -m tests.evidence.audit.programs NAME FOLDER`` runs one of them.

Four train what programs in ``examples/`` train, and four use other libraries. In most programs, trials wait for data,
which ``time.sleep`` represents.
"""

import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune
from ray.tune.schedulers import ASHAScheduler

sys.path.append(str(Path(__file__).parents[3] / "examples"))

_Program = tuple[Any, dict[str, float], dict[str, Any]]
"""A trainable, the resources that each trial requests, and other arguments of ``tune.run``."""

_RATES = tune.loguniform(1e-3, 1e-1)


def _example(name: str) -> Any:
    """Return a module of the folder ``examples``, which trials cannot import."""
    module = import_module(name)
    cloudpickle.register_pickle_by_value(module)
    return module


def _waits(train: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    """Return a trainable that repeatedly waits for data and then trains."""

    def waiting(config: dict[str, Any]) -> None:
        for _ in range(3):
            time.sleep(4)
            train(config)

    return waiting


def pytorch() -> _Program:
    train_digits = _example("tune_pytorch").train_digits

    def train(config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)  # otherwise, it uses a thread for each of the 4 CPUs, but the machine has only 2
        train_digits(config)

    space = {"lr": tune.choice([1e-3, 1e-2]), "width": 32}
    return _waits(train), {"cpu": 4}, {"config": space, "num_samples": 6}


def optuna_asha() -> _Program:
    from ray.tune.search.optuna import OptunaSearch

    scheduler = ASHAScheduler(max_t=12, grace_period=4, reduction_factor=2)
    options = {"search_alg": OptunaSearch(seed=0), "scheduler": scheduler, "metric": "loss", "mode": "min"}
    return (
        _waits(_example("tune_optuna_asha").train),
        {"cpu": 4},
        {"config": {"lr": _RATES, "width": 32}, "num_samples": 8, **options},
    )


def trainables() -> _Program:
    training: Any = _example("tune_trainables").Training

    class Waiting(training):  # type: ignore[misc]
        def step(self) -> dict[str, Any]:
            time.sleep(1.5)
            return {"loss": self.loss}

    return Waiting, {"cpu": 2}, {"config": {"lr": _RATES}, "num_samples": 16, "stop": {"training_iteration": 8}}


def mixed() -> _Program:
    return _waits(_example("tune_mixed").train), {"cpu": 2}, {"config": {"lr": _RATES}, "num_samples": 12}


def scikit_learn() -> _Program:
    def train(config: dict[str, Any]) -> None:
        from sklearn.datasets import load_digits
        from sklearn.linear_model import SGDClassifier

        model = SGDClassifier(alpha=config["lr"], random_state=0).fit(*load_digits(return_X_y=True))
        tune.report({"iterations": int(model.n_iter_)})

    return _waits(train), {"cpu": 4}, {"config": {"lr": _RATES}, "num_samples": 8}


def xgboost() -> _Program:
    def train(config: dict[str, Any]) -> None:
        import xgboost
        from sklearn.datasets import load_digits

        data = xgboost.DMatrix(*load_digits(return_X_y=True))
        options = {"eta": config["lr"], "nthread": 1, "max_depth": config["depth"]}
        for step in range(4):
            xgboost.train(options, data, num_boost_round=10)
            tune.report({"step": step})

    space = {"lr": _RATES, "depth": tune.choice([2, 3])}
    return _waits(train), {"cpu": 4}, {"config": space, "num_samples": 8}


def lightgbm() -> _Program:
    def train(config: dict[str, Any]) -> None:
        import lightgbm
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        options = {"learning_rate": config["lr"], "num_threads": 1, "verbose": -1, "num_leaves": 4}
        lightgbm.train(options, lightgbm.Dataset(images, labels), num_boost_round=5)
        tune.report({"done_rounds": 5})

    return _waits(train), {"cpu": 2}, {"config": {"lr": _RATES}, "num_samples": 12}


def hyperopt() -> _Program:
    from ray.tune.search.hyperopt import HyperOptSearch

    def train(config: dict[str, Any]) -> None:
        tune.report({"loss": (config["lr"] - 0.1) ** 2})

    search = HyperOptSearch(metric="loss", mode="min", random_state_seed=0)
    return _waits(train), {"cpu": 4}, {"config": {"lr": _RATES}, "num_samples": 8, "search_alg": search}


PROGRAMS = {
    program.__name__: program
    for program in (pytorch, optuna_asha, trainables, mixed, scikit_learn, xgboost, lightgbm, hyperopt)
}


def main() -> None:
    name, folder = sys.argv[1:]
    trainable, resources, options = PROGRAMS[name]()
    ray.init(address="local", num_cpus=8, include_dashboard=False)
    began_s = time.monotonic()
    tune.run(
        tune.with_resources(trainable, resources),
        **options,
        storage_path=folder,
        name="run",
        verbose=0,
        reuse_actors=not isinstance(trainable, type),
    )
    Path(folder, "took").write_text(str(time.monotonic() - began_s))
    ray.shutdown()


if __name__ == "__main__":
    main()
