"""What the autoscaler says about its launches, and when that means that a request will not be met.

Pure: a report is a value, however it was read.
"""

from collections import Counter
from typing import Final, NamedTuple

_SILENT_REPORTS: Final = 3
"""So many reports in a row without any launch mean that none will come.

One is not enough: between a launch and the node's first sign of life, neither version of the autoscaler reports it.
"""


class Launch(NamedTuple):
    """The launch of one node.

    Attributes:
        node_type: The name of the type.
        started_at: When it was asked for, in seconds of the head node's clock.
        error: Why it failed, as far as the autoscaler says; empty where it did not fail.
    """

    node_type: str
    started_at: float
    error: str = ""


class LaunchReport(NamedTuple):
    """What one round of the autoscaler did.

    Attributes:
        number: Differs from round to round.
        answers: Whether the round knew what was asked for.
        pending: Nodes that are being launched, by the name of their type.
        launches: Those that are being launched, where it is said when they were started.
        failures: Those that failed: the autoscaler keeps them for as long as it runs, or for half an hour.
        refused: Whether it says that what was asked for can never be met.
        time: When this was written, in seconds of the head node's clock; ``None``: not said.
    """

    number: float
    answers: bool
    pending: Counter[str] = Counter()  # noqa: RUF012 - never changed
    launches: frozenset[Launch] = frozenset()
    failures: Counter[Launch] = Counter()  # noqa: RUF012 - never changed
    refused: bool = False
    time: float | None = None


class LaunchWatch:
    """Follows the reports after a request, until one means that the request will not be met."""

    def __init__(self, before: LaunchReport, node_types: frozenset[str] | None = None) -> None:
        """Start to watch.

        Args:
            before: A report from before the request: what was launched or failed then is none of this request's.
            node_types: The types that hold a trial, if they are known.
        """
        self._before = before
        self._node_types = node_types
        self._last = before.number
        self._silent = 0

    def verdict(self, report: LaunchReport) -> str | None:
        """Return why the request will not be met; ``None``: it still may be."""
        if not report.answers or report.number == self._last:
            return None
        self._last = report.number
        if report.refused:
            return "the autoscaler says that no node which it may add meets this"
        failures = [each for each in report.failures - self._before.failures if self._is_ours(each)]
        failed = {each.node_type for each in failures}
        self._silent = 0 if report.pending else self._silent + 1
        if failed and self._no_other_type(failed, report):
            return " and ".join(sorted({_told(each) for each in failures}))
        if self._silent >= _SILENT_REPORTS:
            return "the autoscaler launches nothing more for it"
        return None

    def _is_ours(self, failure: Launch) -> bool:
        """Return whether the launch may have been made for the request: of a type that helps, and not before it."""
        before = self._before
        if self._node_types is not None and failure.node_type not in self._node_types:
            return False
        if before.time is not None and failure.started_at < before.time:
            return False
        return all(failure[:2] != launch[:2] for launch in before.launches)

    def _no_other_type(self, failed: set[str], report: LaunchReport) -> bool:
        """Return whether nothing is left to hope for: the autoscaler itself retries what failed for ever."""
        if self._node_types is not None and self._node_types <= failed:
            return True
        others = (report.pending.keys() & (self._node_types or report.pending.keys())) - failed
        # In the round of the failure, v1 has not tried another type yet.
        return not others and (bool(report.pending) or self._silent > 1)


def _told(failure: Launch) -> str:
    return f"the launch of {failure.node_type!r} failed{failure.error and ': '}{failure.error}"
