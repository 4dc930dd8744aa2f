"""Asks Ray's autoscaler for nodes ahead of a run, and lets them go after it."""

import logging
from types import TracebackType
from typing import Self

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import Bundle
from tune_policies.ray_compat.autoscaler import Autoscaler, counted, find_autoscaler, ray_errors, start_coordinator_here
from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.resources import check_count
from tune_policies.values.value import shorten

logger = logging.getLogger(__name__)


class CapacityRequest:
    """Nodes that were asked for. They are let go at the end of a ``with`` block, or by :meth:`release`."""

    def __init__(self, autoscaler: Autoscaler | None, bundles: list[Bundle]) -> None:
        """Ask at once. Without an autoscaler, nothing is asked for, now or later."""
        self._autoscaler = autoscaler
        self._bundles = bundles
        if autoscaler is not None:
            try:
                autoscaler.request(bundles)
            except BaseException:  # Ctrl-C among them: the request may have been made already
                self.release()
                raise

    def release(self) -> None:
        """Ask for nothing any more, unless somebody else has asked for something since. May be called twice."""
        if self._autoscaler is None:
            return
        try:
            if self._autoscaler.requested() == counted(self._bundles):
                self._autoscaler.request([])
        except ProbeError as error:
            # Often on the way out of another error, which says more. A cluster that is gone holds nothing.
            logger.warning("the capacity that was asked for could not be released: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def request_capacity(plan: TrialPlan, num_trials: int | None = None) -> CapacityRequest:
    """Ask the autoscaler for the nodes that the trials of ``plan`` need, before they wait for them.

    Returns at once; the nodes come later. As a context manager it lets them go on any exit::

        with request_capacity(plan):
            tuner.fit()

    Without an autoscaler it does nothing, and says so in the log: the same script runs on a laptop. Nodes that never
    come are no error: :func:`plan_when_ready`, called before, has a deadline.

    What Ray makes of the request:

    * Ray holds one request for the whole cluster, and the last writer wins. Another program's request, a plain
      ``request_resources``, or ``plan_when_ready`` inside the block replaces this one, and this one theirs. A request
      that was replaced is not released here.
    * It counts what the cluster has, not what is free: no nodes are added in place of those that others use.
    * It stays until it is overwritten, even when this program ends without ``with`` or is killed, and its nodes never
      go. Then call :func:`release_capacity` from any program on the cluster.
    * Autoscaler v2 adds nodes for all of the request or for none: ask for no more trials than can run at once. v1
      adds what it can, and drops label selectors, as does Ray 2.50.
    * After the release, nodes go when they have been idle for the cluster's ``idle_timeout_minutes``. Ray Train leaves
      an actor behind, which would keep its node busy. With Train workers, it is started on this program's node instead.

    Args:
        plan: What the trials reserve, drivers and Train workers alike.
        num_trials: How many trials to ask for; ``None``: as many as the plan runs at once, where configs decide
            those that need the most.

    Raises:
        InvalidResourcesError: ``plan`` is no plan, or ``num_trials`` no whole number above 0.
        ProbeError: The program is not connected to Ray, or Ray went away.
    """
    if not isinstance(plan, TrialPlan):
        raise InvalidResourcesError(f"plan must be the TrialPlan of a policy, got {shorten(plan)}")
    number = plan.min_concurrent_trials if num_trials is None else check_count(num_trials, least=1, name="num_trials")
    autoscaler = find_autoscaler()
    if autoscaler is None:
        logger.info("nothing adds nodes to this cluster, so none are asked for")
    elif any(slot.num_workers for slot in plan.slots):
        with ray_errors():
            start_coordinator_here()
    return CapacityRequest(autoscaler, plan.bundles(number))


def release_capacity() -> None:
    """Ask the autoscaler for nothing any more, whoever asked before. Without an autoscaler it does nothing.

    Raises:
        ProbeError: The program is not connected to Ray, or Ray went away.
    """
    autoscaler = find_autoscaler()
    if autoscaler is not None:
        autoscaler.request([])
