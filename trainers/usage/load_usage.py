"""What a run used, loaded from its results: the record of its callback, and what the files of its trials contain."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType

from tune_policies.files.reading import MAX_RECORD_BYTES, read_value
from tune_policies.files.terminal import line
from tune_policies.policies.learning import LEARNED_FILE, LearningPolicy, use_of_learned
from tune_policies.policies.policy_file import load_policy
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

from .gpu_memory_records import RunUsage, read_usage
from .resource_usage import USAGE_FILE, ResourceUsage
from .usage_report import CALLBACK, advice_of_run, usage_view

_NO_RECORD: Final = (
    f"the run had no PolicyCallback, so the use of CPUs, devices and slots is not known. Run again with "
    f"run(train_fn, policy, {CALLBACK}), or set RAY_TUNE_CALLBACKS=tune_policies.PolicyCallback for any program"
)


class LoadedUsage(RunUsage):
    """What a run used, with advice. A notebook displays it as the tables of ``tune-policies usage``.

    Attributes:
        trials: What each trial used: ``usage`` is its GPU memory, ``process`` its CPU time and host memory, and
            ``failures`` its out-of-memory errors. The trials are sorted by name.
        resource_usage: The record of the run's ``PolicyCallback``: the use of CPUs, devices and slots. ``None`` if the
            run had no such callback.
        learned: What the ``LearningPolicy`` of the run has learned, and how the next run can use it, or ``None``.
    """

    resource_usage: ResourceUsage | None = None
    learned: str | None = None

    def __rich__(self) -> RenderableType:
        return loaded_usage_view(self)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change in the next run, one sentence per item."""
        return (*advice_of_run(self, self.resource_usage), *_for_the_next_run(self))

    def redacted(self) -> "LoadedUsage":
        """Return a copy without errors, warnings and names from the cluster, so that it can be published."""
        record = self.resource_usage and self.resource_usage.redacted()
        return LoadedUsage(trials=super().redacted().trials, folder_of=self.folder_of, resource_usage=record)


def loaded_usage_view(usage: LoadedUsage) -> RenderableType:
    """Return the tables and lines about a run."""
    return Group(usage_view(usage, usage.resource_usage), *(line(f"- {text}") for text in _for_the_next_run(usage)))


def _for_the_next_run(usage: LoadedUsage) -> Iterator[str]:
    """Yield what the run has learned, and what the next run can record if this run had no ``PolicyCallback``."""
    if usage.learned is not None:
        yield usage.learned
    if usage.resource_usage is None and usage.folder_of == "experiment":
        yield _NO_RECORD


def load_usage(results: Any) -> LoadedUsage:
    """Return what a run used, as ``tune-policies usage`` prints it.

    Example: ``usage = load_usage(run(train_fn, policy, callbacks=[PolicyCallback()]))``. Then ``usage.advice`` contains
    what to change, ``usage.resource_usage`` the use of CPUs, devices and slots, and ``usage.trials`` the GPU memory,
    CPU time and host memory of each trial. Without a ``PolicyCallback`` in the run, ``usage.resource_usage`` is
    ``None``.

    Args:
        results: The results of ``run``, ``tuner(…).fit()``, ``tune.run`` or a trainer's ``fit``, or the path of their
            folder. The folder must be on this machine or on a mounted file system.

    Raises:
        InvalidResourcesError: ``results`` is nothing of this kind, its folder is not on this machine or contains no
            results, or its record cannot be read.
    """
    folder = results
    # Tune's results have an ``experiment_path``, and the result of a trainer has a ``path``.
    for name in ("experiment_path", "path"):
        if not isinstance(folder, str | Path):
            folder = getattr(results, name, results)
    if not isinstance(folder, str | Path):
        raise InvalidResourcesError(
            f"results must be the results of a run or the path of their folder, got {shorten(results)}. Write "
            "load_usage(run(train_fn, policy)) or load_usage('RESULT_DIR')"
        )
    found = read_usage(Path(folder))
    return LoadedUsage(
        trials=found.trials,
        folder_of=found.folder_of,
        resource_usage=read_record(Path(folder)),
        learned=learned_in(Path(folder)),
    )


def learned_in(folder: Path) -> str | None:
    """Return what the policy in a run's folder has learned, or ``None`` if there is none that can be read."""
    file = folder / LEARNED_FILE
    policy = None
    if file.exists():
        with suppress(InvalidResourcesError):  # another version of this package may have written it
            policy = load_policy(file)
    if isinstance(policy, LearningPolicy) and policy.learned:
        return f"{policy.learned}. Next time, write {use_of_learned(str(file))}"
    return None


def read_record(folder: Path) -> ResourceUsage | None:
    """Return the usage record in a run's folder, or ``None`` if the run had no ``PolicyCallback``.

    Raises:
        InvalidResourcesError: The record cannot be read.
    """
    file = folder / USAGE_FILE
    if file.exists():
        return read_value(file, ResourceUsage, "record of a run", max_bytes=MAX_RECORD_BYTES)
    return None
