"""Classifies the failure of a trial or a Train run once.

A trial's process under a policy classifies its own error and adds a report to it. The program that runs the trials only
classifies errors without a report: the death of a process, and errors of trials without a policy.
"""

from tune_policies.oom import OutOfMemory, classify_oom
from tune_policies.ray_compat.kernel_kills import was_killed_by_kernel

from ..usage.oom_report import OomReport


def classify_failure(error: object, actor_id: str | None = None) -> OutOfMemory:
    """Return the out-of-memory error in the failure of a trial or a Train run.

    If the kernel may have killed the process, the function reads a count on its node, which may take seconds.

    Args:
        error: The error that Ray raised.
        actor_id: The hexadecimal ID of the trial's actor. Ray's memory monitor may kill several actors at once.
    """
    found = classify_reported(error, actor_id)
    # Last, because this is the only step that asks the node of the process.
    if found.kind == "none" and was_killed_by_kernel(error):
        return OutOfMemory(kind="host")
    return found


def classify_reported(error: object, actor_id: str | None = None) -> OutOfMemory:
    """Return the out-of-memory error that an error itself reports, without asking Ray or a node.

    The arguments are those of :func:`classify_failure`.
    """
    report = OomReport.from_error(error)
    if report is not None:
        return report.out_of_memory
    found = classify_oom(error)
    if found.killed_workers:
        return found.of_actor(actor_id)
    return found
