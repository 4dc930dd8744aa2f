"""Rules of other libraries that tune hyperparameters: AutoGluon, NNI and FLAML. None of them learns from its trials.

A trial that runs out of memory is lost: AutoGluon skips the model, NNI marks the trial as failed, and FLAML reports the
result of a dummy model instead.

Sources:

* AutoGluon: ``folds_to_fit_in_parallel_with_mem`` and ``_max_folds_in_parallel_with_vram`` in
  ``core/models/ensemble/fold_fitting_strategy.py``, ``core/ray/resources_calculator.py``, and
  ``_estimate_memory_usage`` in ``core/models/abstract/abstract_model.py`` (commit f34ebb4).
* NNI: ``training_service/reusable/gpuScheduler.ts``, and ``maxTrialNumberPerGpu``, ``trialGpuNumber`` and
  ``trialConcurrency`` in the reference of the experiment config (version 3.0).
* FLAML: ``resources_per_trial``, ``mem_thres`` and ``n_concurrent_trials`` in ``automl/automl.py``, ``MEM_THRES`` in
  ``config.py``, and ``LGBMEstimator.size`` in ``automl/model.py`` (commit 53e3461).
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from tune_policies.plan.trial_observation import TrialObservation

from ..simulation import GIB, Machine, Request, SimTrial

MAX_MEMORY_USAGE_RATIO: Final = 0.8
"""AutoGluon's ratio of the available memory that folds in parallel may use."""

MEM_THRES: Final = 4 * GIB
"""FLAML's default limit of the size of a model in bytes. Larger configs are not tried."""


class _Once:
    """Gives all trials the same request, and gives up trials that ran out of memory."""

    request = Request()
    progress = None

    def requests(self, index: int, config: dict[str, Any], failed: Sequence[Request]) -> list[Request]:
        return [] if failed else [self.request]

    def observe(self, observation: TrialObservation) -> bool:
        return False


def folds_in_parallel(wanted: int, available: float, estimate: float, ratio: float = MAX_MEMORY_USAGE_RATIO) -> int:
    """Return how many folds AutoGluon fits at once in the available memory: all, or the largest power of two."""
    most = max(1, int(available / estimate * ratio))
    return wanted if most >= wanted else 2 ** int(math.log2(most))


def folds_on_gpus(gpus: Sequence[float], estimate: float, ratio: float = MAX_MEMORY_USAGE_RATIO) -> int:
    """Return how many folds AutoGluon's estimate allows at once on GPUs with this memory."""
    return max(1, sum(int(memory / estimate * ratio) for memory in gpus))


def cpus_per_job(cpus: int, num_jobs: int, minimum: int = 1, most_in_memory: int | None = None) -> tuple[int, int]:
    """Return AutoGluon's CPUs of each job, and the number of jobs at once."""
    at_once = min(num_jobs, cpus // max(minimum, cpus // num_jobs))
    at_once = at_once if most_in_memory is None else min(at_once, most_in_memory)
    return cpus // at_once, at_once


class AutoGluon(_Once):
    """Estimates the memory before the first trial, from the size of the data and a formula for each kind of model.

    A simulated sweep has no data, so the estimate is the mean need of the trials, with which no config is
    distinguished. Each trial counts as a fold.
    """

    name = "AutoGluon"

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        cpus = int(machine.cpus)
        host_gib = fmean(trial.host_gib for trial in trials)
        at_once = folds_in_parallel(len(trials), machine.host_gib, host_gib)
        if machine.gpus_gib:
            on_gpus = folds_on_gpus(machine.gpus_gib, fmean(trial.gpu_gib for trial in trials))
            at_once = min(at_once, folds_in_parallel(len(trials), on_gpus, 1, ratio=1))
        num_cpus, at_once = cpus_per_job(cpus, len(trials), most_in_memory=at_once)
        gpu = min(1.0, len(machine.gpus_gib) / at_once)
        if gpu:
            gpu = 1 / math.floor(1 / gpu)  # Ray packs equal parts of a device
        self.request = Request(num_cpus, 0.0, gpu)


class Nni(_Once):
    """Starts trials on a GPU until ``max_trial_number_per_gpu`` of them run there, whatever they need.

    Without GPUs, ``trialConcurrency`` trials run at once: one for each CPU.
    """

    name = "NNI, 4 trials per GPU"
    max_trial_number_per_gpu = 4

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        self.request = Request(1.0)
        if machine.gpus_gib:
            # NNI does not count CPUs, so trials on GPUs reserve nearly none.
            self.request = Request(0.001, 0.0, 1 / self.max_trial_number_per_gpu)


def lgbm_size(config: Mapping[str, Any]) -> float:
    """Return FLAML's estimate of the size of a LightGBM model in bytes, with which it also estimates other models."""
    num_leaves = round(config.get("num_leaves") or config.get("max_leaves") or 1 << config.get("max_depth", 16))
    return float((num_leaves * 3 + (num_leaves - 1) * 4 + 1.0) * round(config["n_estimators"]) * 8)


def cpus_per_trial(num_cpus: int, n_concurrent_trials: int) -> int:
    """Return the CPUs that FLAML requests for a trial without GPUs if ``n_jobs`` is not set."""
    return max(int((num_cpus - 2) / 2 / n_concurrent_trials), 1)


class Flaml(_Once):
    """Runs ``n_concurrent_trials`` at once, with equal parts of the GPUs, and does not try models above 4 GiB."""

    name = "FLAML, 4 at once"
    n_concurrent_trials = 4

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        num_gpus = len(machine.gpus_gib)
        if not num_gpus:
            self.request = Request(cpus_per_trial(int(machine.cpus), self.n_concurrent_trials))
            return
        per_gpu = math.ceil(self.n_concurrent_trials / num_gpus)
        self.request = Request(1.0, 0.0, 1 / per_gpu)

    def requests(self, index: int, config: dict[str, Any], failed: Sequence[Request]) -> list[Request]:
        if "n_estimators" in config and lgbm_size(config) > MEM_THRES:
            return []
        return super().requests(index, config, failed)


RULES = [AutoGluon, Nni, Flaml]
