"""Requests nodes from Ray's autoscaler before a run, and releases them after the run."""

import logging
from types import TracebackType
from typing import Self

from tune_policies.placement.trial_slot import Bundle
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.ray_compat.autoscaler import Autoscaler, counted, find_autoscaler, ray_errors, start_coordinator_here
from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.resources import check_count
from tune_policies.values.wording import shorten

logger = logging.getLogger(__name__)


class CapacityRequest:
    """A request for nodes. Call :meth:`release` to withdraw it, or use it in a ``with`` block."""

    def __init__(self, autoscaler: Autoscaler | None, bundles: list[Bundle]) -> None:
        """Request the bundles. Without an autoscaler, this method and :meth:`release` do nothing."""
        self._autoscaler = autoscaler
        self._bundles = bundles
        if autoscaler is not None:
            try:
                autoscaler.request(bundles)
            except BaseException:  # on Ctrl-C, the request may already have been made
                self.release()
                raise

    def release(self) -> None:
        """Withdraw the request, unless another request has replaced it. You can call this method several times."""
        if self._autoscaler is None:
            return
        try:
            # Ray has one request for the whole cluster, and another program may have replaced this one meanwhile.
            if self._autoscaler.requested() == counted(self._bundles):
                self._autoscaler.request([])
        except ProbeError as error:
            # An error here would hide an earlier error. If the cluster has stopped, no release is needed.
            logger.warning("the requested capacity could not be released: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def request_capacity(plan: TrialPlan, num_trials: int | None = None) -> CapacityRequest:
    """Request the nodes for the trials of ``plan`` from the autoscaler before the trials start.

    The function returns immediately, and the nodes are added later. The end of a ``with`` block withdraws the request::

        with request_capacity(plan):
            tuner.fit()

    Without an autoscaler, the function only logs a message, so that the same script runs on a laptop. If the nodes are
    never added, no error is raised. To set a timeout, call :func:`plan_when_ready` first.

    How Ray handles the request:

    * Ray keeps one request for the whole cluster. A later request of any program, such as ``request_resources`` or
      ``plan_when_ready``, replaces this request. The end of the ``with`` block does not withdraw a later
      request.
    * Ray counts all nodes of the cluster, including nodes in use, so the request does not guarantee free nodes.
    * If the program is killed or has no ``with`` block, the request and its nodes remain. In this case, call
      :func:`release_capacity` from any program on the cluster.
    * Autoscaler v2 adds either all nodes for the request or none, so request only trials that can run concurrently.
      Autoscaler v1 adds as many nodes as it can. Autoscaler v1 and Ray 2.50 ignore label selectors.
    * After the release, nodes are removed when they have been idle for the cluster's ``idle_timeout_minutes``. For a
      plan with Train workers, the function starts Ray Train's coordinator actor on the node of this program, so that
      the actor does not keep another node busy.

    Args:
        plan: The plan. The request includes the drivers and Train workers of its trials.
        num_trials: The number of trials. The default is the number of concurrent trials of the plan. If the plan
            has ``by_config``, nodes are requested for the trials with the largest requests.

    Raises:
        InvalidResourcesError: ``plan`` is not a plan, or ``num_trials`` is not a whole number above 0.
        ProbeError: The program is not connected to Ray, or the connection is lost.
    """
    if not isinstance(plan, TrialPlan):
        raise InvalidResourcesError(f"plan must be the TrialPlan of a policy, got {shorten(plan)}")
    number = plan.min_concurrent_trials
    if num_trials is not None:
        number = check_count(num_trials, least=1, name="num_trials")
    autoscaler = find_autoscaler()
    if autoscaler is None:
        logger.info("this cluster has no autoscaler, so no nodes are requested")
    # Tune alone does not start this actor.
    elif any(slot.num_workers for slot in plan.slots):
        with ray_errors():
            start_coordinator_here()
    return CapacityRequest(autoscaler, plan.bundles(number))


def release_capacity() -> None:
    """Withdraw the cluster's request for nodes, even if another program made it.

    Without an autoscaler, the function does nothing.

    Raises:
        ProbeError: The program is not connected to Ray, or the connection is lost.
    """
    autoscaler = find_autoscaler()
    if autoscaler is not None:
        autoscaler.request([])
