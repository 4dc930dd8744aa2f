"""Gradient boosting with XGBoost on a table of numbers."""

import json
from typing import Any, Final

import numpy as np
import xgboost

from .steps import Steps, unseen

SEED: Final = 0
NUM_ROUNDS: Final = 10
_NUM_FEATURES: Final = 28
_PARAMETERS: Final = {
    "objective": "binary:logistic",
    "eval_metric": "logloss",
    "tree_method": "hist",
    "max_depth": 6,
    "max_bin": 256,
    "seed": SEED,
    "verbosity": 0,
}


def boosting(size: int, device: str) -> Steps:
    """Return steps that train 10 trees of depth 6 on ``size`` rows with 28 features and two classes.

    ``compute`` trains on a table that is already sorted into bins on the device.
    """
    parameters = {**_PARAMETERS, "device": _xgboost_device(device)}
    rows, labels = _make_table(size)
    table = xgboost.DMatrix(rows, labels)
    return Steps(
        with_transfers=lambda: _train(parameters, xgboost.DMatrix(rows, labels)),
        compute=lambda: _train(parameters, table),
        steps_per_epoch=1,
        dtype="float32",
        samples_per_step=size,
    )


def _make_table(num_rows: int) -> tuple[Any, Any]:
    """Return rows of standard normal numbers, and a class for each row that depends on three columns and noise."""
    rng = np.random.default_rng(SEED)
    rows = rng.standard_normal((num_rows, _NUM_FEATURES), dtype=np.float32)
    noise = rng.standard_normal(num_rows, dtype=np.float32)
    return rows, (rows[:, 0] + rows[:, 1] * rows[:, 2] + noise > 0).astype(np.float32)


def _train(parameters: dict[str, Any], table: Any) -> float:
    losses: dict[str, dict[str, list[float]]] = {}
    xgboost.train(parameters, table, NUM_ROUNDS, evals=[(table, "train")], evals_result=losses, verbose_eval=False)
    return losses["train"]["logloss"][-1]


def _xgboost_device(device: str) -> str:
    """Return XGBoost's name of a device, or raise ``ProbeError`` if XGBoost would silently train on the CPU."""
    if device == "cpu":
        return "cpu"
    if device.upper() == "GPU":
        # A build without CUDA trains on the CPU with a warning only, so train the smallest possible model and look.
        least = xgboost.DMatrix(np.zeros((2, 1), np.float32), np.array([0, 1]))
        booster = xgboost.train({"device": "cuda", "verbosity": 0}, least, 1)
        # Only the saved configuration shows the device that XGBoost used.
        used = str(json.loads(booster.save_config())["learner"]["generic_param"]["device"])
        if used.startswith("cuda"):
            return "cuda"
    raise unseen(f"XGBoost {xgboost.__version__}", device)
