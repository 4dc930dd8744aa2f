"""Changes the arguments of calls of ``tune.run``, including calls by libraries.

``tune.run_experiments``, ``Tuner.fit`` and a restored ``Tuner`` also call ``ray.tune.run``. Ray has no hook for this
function, and a program may have stored it anywhere: under another name, in a ``functools.partial``, in a dictionary, as
a default argument or as an attribute. Therefore, this module does not replace references to the function. It replaces
the code of the function itself, ``__code__``, which all references share. The function is the same in Ray 2.50 and
2.60.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import ray.tune.impl.tuner_internal
import ray.tune.tune

from tune_policies.ray_compat.version import version_error

Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""A function that receives the arguments of ``tune.run`` by name, and returns the arguments to replace or add."""


@dataclass(eq=False)
class _Block:
    """A block of ``changed_tune_run``. Blocks can end in another order or context than they began."""

    change: Change
    has_ended: bool = False


_blocks: ContextVar[tuple[_Block, ...]] = ContextVar("changes_of_tune_run", default=())
"""The blocks that began in this context, outermost first."""

_change_of_program: Change | None = None
_lock: Final = threading.Lock()
_num_users = 0
_run: Any = ray.tune.tune.run
"""Ray's function, whose code is replaced while ``_num_users`` is above 0."""
_original: Any = _run
"""A copy of the function with the original code. Also calls that began in a block and end after it use this copy."""


@contextmanager
def changed_tune_run(change: Change) -> Iterator[None]:
    """Change the arguments of each call of ``tune.run`` in the block.

    In nested blocks, only the innermost change applies. Only calls in this thread or asynchronous task are affected.
    """
    _replace_code()
    block = _Block(change)
    _blocks.set((*_running_blocks(), block))
    try:
        yield
    finally:
        block.has_ended = True
        _blocks.set(_running_blocks())
        _restore_code()


def _running_blocks() -> tuple[_Block, ...]:
    return tuple(block for block in _blocks.get() if not block.has_ended)


def change_tune_run_of_program(change: Change) -> None:
    """Change the arguments of each call of ``tune.run`` in all threads, until the program ends.

    Calls in a block of ``changed_tune_run`` use the change of that block instead.
    """
    global _change_of_program
    _replace_code()
    _change_of_program = change


def _replace_code() -> None:
    global _num_users, _run, _original
    with _lock:
        if _num_users == 0:
            _run = _run_of_ray()
            _original = FunctionType(_run.__code__, _run.__globals__, _run.__name__, _run.__defaults__)
            _original.__kwdefaults__ = _run.__kwdefaults__
            # Libraries compare their arguments with the parameters of tune.run, which Python reads from the code.
            _run.__signature__ = inspect.signature(_run)
            # Python refuses code with another number of free variables, so ``_replacement`` must not be a closure.
            _run.__code__ = _replacement.__code__
        _num_users += 1


def _restore_code() -> None:
    global _num_users
    with _lock:
        _num_users -= 1
        if _num_users == 0:
            _run.__code__ = _original.__code__
            del _run.__signature__


def _run_of_ray() -> FunctionType:
    """Return Ray's own function, although other code may have replaced it with a wrapper under some of its names.

    Raises:
        RayVersionError: None of the names leads to Ray's function.
    """
    for named in (ray.tune.tune.run, ray.tune.run, ray.tune.impl.tuner_internal.run):
        found = inspect.unwrap(named)
        if isinstance(found, FunctionType) and found.__globals__ is vars(ray.tune.tune):
            return found
    raise version_error(AttributeError("ray.tune.tune.run is not a function of this module"), "applied")


def _replacement(*args: Any, **kwargs: Any) -> Any:
    """Provide the code that replaces the code of ``tune.run``. It uses the global names of Ray's module."""
    from tune_policies.ray_compat import patched_tune_run

    return patched_tune_run.run_with_change(args, kwargs)


def run_with_change(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the original ``tune.run`` with the arguments that the current change returns."""
    running = _running_blocks()
    change = running[-1].change if running else _change_of_program
    if change is None:
        return _original(*args, **kwargs)
    # By name, because a change may replace an argument that the call passes by position.
    arguments = inspect.signature(_original).bind(*args, **kwargs).arguments
    return _original(**{**arguments, **change(arguments)})
