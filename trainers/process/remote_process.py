"""Sets up the processes of your own Ray tasks and actors in the same way as the processes of trials.

Ray does not enforce the resources of a task or an actor. ``with_limits`` enforces the plan's limits in the process.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, new_class
from typing import Any, Literal, NamedTuple, TypeVar

from ray.actor import ActorClass
from ray.remote_function import RemoteFunction

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

from .current_process import CURRENT
from .process_setup import ProcessSetup, limit_options, set_up_before, wrapped_in

TargetT = TypeVar("TargetT", bound=Callable[..., Any])


def with_limits(
    plan: TrialPlan,
    *,
    isolation: Literal["mps"] | None = None,
    on_unenforced_limit: Literal["raise", "warn"] = "raise",
) -> Callable[[TargetT], TargetT]:
    """Return a decorator that limits a task or an actor to its assigned resources, like a trial of the plan.

    Write the decorator below ``ray.remote``::

        @ray.remote(**plan.remote_options())
        @with_limits(plan)
        def evaluate(path): ...

    Before your code runs, the process gets the devices, the number of threads and the GPU memory limit of a trial. A
    task is set up before each call, and an actor before its ``__init__``. If Ray assigns a GPU fraction that differs
    from the plan, for example with ``.options(num_gpus=0.25)``, the limit changes in proportion.

    Args:
        plan: The plan whose ``remote_options()`` you pass to ``ray.remote``.
        isolation: Pass ``"mps"`` to also limit the process with NVIDIA's MPS daemon, if the daemon is running on the
            node.
        on_unenforced_limit: If a limit cannot be enforced, ``"raise"`` raises an error, and ``"warn"`` adds a warning
            to ``gpu_memory_usage()``.

    Returns:
        The decorator. It takes a function or a class, returns a limited version of it, and raises
        ``InvalidResourcesError`` for anything else.

    Raises:
        InvalidResourcesError: ``plan`` is not a ``TrialPlan``.
        MemoryLimitError: In the process, the GPU memory cannot be limited, or other processes use it. If an actor's
            ``__init__`` raises this error, Ray raises an ``ActorDiedError`` that quotes it.
    """
    if not isinstance(plan, TrialPlan):
        raise InvalidResourcesError(f"with_limits takes a plan, such as plan_on_cluster(policy), got {shorten(plan)}")
    setup = ProcessSetup.for_worker(plan.common_slot, limit_options(isolation, on_unenforced_limit))

    def decorate(target: Any) -> Any:
        if isinstance(target, (RemoteFunction, ActorClass)):
            raise InvalidResourcesError(f"{shorten(target)} is already remote. Write @with_limits below @ray.remote")
        if isinstance(target, type):
            return _limited_class(target, setup)
        if not callable(target):
            raise InvalidResourcesError(f"with_limits takes a function or a class, got {shorten(target)}")
        return set_up_before(wrapped_in(target, _call_of_task), lambda _: setup.apply())

    return decorate


@contextmanager
def _call_of_task(*_: Any) -> Iterator[None]:
    yield
    CURRENT.trial.require_limit()  # the user's code may have caught the error that an import raised


class _Actor(NamedTuple):
    """Sets up an actor's process before its methods run, and checks the memory limit after each method."""

    setup: ProcessSetup

    @contextmanager
    def creation(self, *_: Any) -> Iterator[None]:
        self.setup.apply()
        with CURRENT.trial.noted_on_oom():
            yield
            CURRENT.trial.require_limit()

    @contextmanager
    def call(self, *_: Any) -> Iterator[None]:
        # An actor with several threads does not run its methods in the thread that ran ``__init__``.
        CURRENT.threads.bind_calling_thread()
        with CURRENT.trial.noted_on_oom():
            yield
            CURRENT.trial.require_limit()


def _limited_class(cls: type, setup: ProcessSetup) -> type:
    actor = _Actor(setup)
    # With ``getattr``, a static method would look like a method, and its wrapper would receive the actor.
    members = {name: inspect.getattr_static(cls, name) for name in dir(cls)}
    changes: dict[str, Any] = {
        name: wrapped_in(member, actor.call)
        for name, member in members.items()
        if isinstance(member, FunctionType) and (not name.startswith("_") or name == "__call__")
    }
    # A class without its own ``__init__`` has that of ``object``, whose signature accepts any arguments.
    init = members["__init__"]
    if not isinstance(init, FunctionType):
        init = _no_arguments
    changes["__init__"] = wrapped_in(init, actor.creation)
    changes |= {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return new_class(cls.__name__, (cls,), exec_body=lambda namespace: namespace.update(changes))


def _no_arguments(self: object) -> None:
    """The replacement for a missing ``__init__``. As in Ray, it takes no arguments."""
