"""A Tune callback that changes nothing in a run, and prints at its end what a policy would change."""

import os
from pathlib import Path
from typing import Any, Final

from tune_policies.files.html_page import html_page
from tune_policies.files.terminal import TextConsole
from tune_policies.files.writing import write_new

from .advice import Advice
from .gpu_memory_records import RunUsage
from .policy_callback import PolicyCallback
from .resource_usage import ResourceUsage, resource_usage_view
from .run_monitor import RunMonitor
from .run_page import build_run_page

PAGES_VARIABLE: Final = "TUNE_POLICIES_AUDIT_PAGES"
"""The environment variable with the folder for the pages of audits."""


class AuditCallback(PolicyCallback):
    """Measures a run without changing it, and prints at the end what the trials reserved and used, and what to change.

    ``RAY_TUNE_CALLBACKS=tune_policies.AuditCallback python program.py`` and ``tune-policies exec --audit program.py``
    audit every run of a program. The processes of the trials are read from outside every second. An error in the
    callback is logged and does not end the run.

    Args:
        pages: A folder in which an HTML page is written for each run, or ``None`` for the folder in the environment
            variable ``TUNE_POLICIES_AUDIT_PAGES``. Without both, no page is written.
    """

    _is_silent = True

    def __init__(self, pages: str | Path | None = None) -> None:
        super().__init__()
        self._pages = pages

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that a ``Tuner`` pickles."""
        return {**super().__getstate__(), "_pages": self._pages}

    def _show(self, run: RunMonitor, usage: ResourceUsage) -> None:
        name = str(self._storage.experiment_dir_name)
        console = TextConsole()
        console.print(f"Audit of the run {name}", soft_wrap=True, highlight=False)
        console.print(resource_usage_view(usage))
        lines = [*about_memory_failures(usage), *audit_lines(run.advice)]
        if isinstance(run.advice, Advice) and usage.trials.were_interrupted:
            lines.append("how much faster this would be is not known, because the run was interrupted")
        for line in lines:
            console.print(f"- {line}", soft_wrap=True, highlight=False)
        pages = self._pages or os.environ.get(PAGES_VARIABLE)
        if pages:
            file = Path(pages) / f"{name}.html"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_new(file, html_page(build_run_page(name, RunUsage(trials=()), usage, lines)), force=True)
            console.print(f"- page: {file}", soft_wrap=True, highlight=False)


def about_memory_failures(usage: ResourceUsage) -> list[str]:
    """Return what would retry trials that ran out of memory, if any did and the program does not retry them."""
    counts = usage.out_of_memory
    if counts.num_raised or not counts.num_gpu_errors + counts.num_host_errors:
        return []
    return [
        "trials that run out of memory would be retried with more under LearningPolicy(), or under another policy with "
        "scheduler=OomRetryScheduler()"
    ]


def audit_lines(advice: Advice | str) -> list[str]:
    """Return what to change after a run, one line per item."""
    if isinstance(advice, str):
        return [f"no policy is suggested: {advice}"]
    return [
        f"to run the trials this way, write run(…, {advice.policy!r}, …), or change nothing in the program: write "
        f"{advice.policy.to_yaml(one_line=True)} to policy.yaml, and start tune-policies exec policy.yaml PROGRAM"
    ]
