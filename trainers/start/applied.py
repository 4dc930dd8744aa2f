"""``applied``, which applies a policy to every run of Tune in a ``with`` block, such as the runs of a library.

``ray_compat/patched_tune_run.py`` changes the calls of ``tune.run``.
"""

import atexit
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from ray.tune.schedulers import FIFOScheduler

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.ray_compat.connection import connect_if_running, is_through_client
from tune_policies.ray_compat.patched_tune_run import change_tune_run_of_program, changed_tune_run
from tune_policies.values.errors import InvalidResourcesError

from ..scheduling.policy_scheduler import PolicyScheduler
from ..scheduling.wrapping_scheduler import nested_schedulers
from .tune_run import options_given_twice, policy_scheduler_in, to_scheduler

_Policy = ResourcePolicy | TrialPlan

_logger = logging.getLogger(__name__)

_THROUGH_CLIENT: Final = (
    "applied does not affect runs through a Ray Client, because these runs start on the cluster. Pass "
    "scheduler=PolicyScheduler(policy) to the run, or submit the program as a Ray job"
)


@contextmanager
def applied(policy: _Policy | PolicyScheduler, **options: Any) -> Iterator[None]:
    """Apply a policy to every ``tune.run`` and ``Tuner.fit`` in a block, including restored runs and runs of a library.

    Example: ``with applied(GpuMemoryPolicy(gpu_memory="4GiB")): model.tune(use_ray=True)``. The scheduler of each run
    becomes the inner scheduler of a ``PolicyScheduler``. A run that has a ``PolicyScheduler`` keeps it, but the policy
    of a restored run is replaced. In nested blocks, the innermost policy applies. Other threads, and code that runs in
    trials, are not affected.

    Args:
        policy: A policy, a plan, or a ``PolicyScheduler`` without an inner scheduler, whose policy and options apply to
            each run.
        **options: Other arguments of ``PolicyScheduler``, such as ``may_move=True``.

    Raises:
        InvalidResourcesError: ``policy`` or an option is invalid, options are given in addition to a
            ``PolicyScheduler``, or the program is connected through a Ray Client and would start its runs on the
            cluster.
    """
    change = partial(_under_template, _template(policy, options))
    _refuse_client()
    with changed_tune_run(change):
        try:
            yield
        except BaseException:
            if is_through_client():
                _logger.warning("%s", _THROUGH_CLIENT)
            raise
    _refuse_client()  # the program may have connected through a Ray Client in the block


def apply_to_program(policy: _Policy, **options: Any) -> None:
    """Apply a policy to every run of Tune in all threads until the program ends, as ``applied`` does in a block.

    Raises:
        InvalidResourcesError: ``policy`` or an option is invalid.
    """
    change_tune_run_of_program(partial(_under_template, _template(policy, options)))
    # The program connects later, so only its end shows whether its runs started on the cluster.
    atexit.register(_warn_of_client)


def _template(policy: _Policy | PolicyScheduler, options: Mapping[str, Any]) -> PolicyScheduler:
    if not isinstance(policy, PolicyScheduler):
        return PolicyScheduler(policy, **options)
    if options:
        raise options_given_twice(options)
    _, inner, *_ = nested_schedulers(policy)
    # A ``PolicyScheduler`` without an inner scheduler has this one.
    if type(inner) is not FIFOScheduler:
        raise InvalidResourcesError(
            f"the PolicyScheduler has the inner scheduler {type(inner).__name__}, but applied keeps the scheduler of "
            "each run. Pass a PolicyScheduler without an inner scheduler"
        )
    return policy


def _under_template(template: PolicyScheduler, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments to replace in a call of ``tune.run``, so that it runs under a policy."""
    connect_if_running()
    inner = to_scheduler(arguments.get("scheduler"))
    own = policy_scheduler_in(inner)
    if own is None:
        return {"scheduler": template.around(inner)}
    if arguments.get("resume") or arguments.get("resume_config"):  # Tune has restored the policy of the earlier run
        own.use_options_of(template)
    return {}


def _refuse_client() -> None:
    if is_through_client():
        raise InvalidResourcesError(_THROUGH_CLIENT)


def _warn_of_client() -> None:
    if is_through_client():
        _logger.warning("%s", _THROUGH_CLIENT)
