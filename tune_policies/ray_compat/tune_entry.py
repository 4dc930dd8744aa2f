"""Changes the arguments of all calls of ``tune.run`` in a block, including calls by libraries.

``tune.run_experiments``, ``Tuner.fit`` and a restored ``Tuner`` also call ``ray.tune.run``. Ray has three names for
this function, and other modules may have imported it under any name. Ray has no hook for it, so this module replaces
all references during the block. The names are the same in Ray 2.50 and 2.60.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FunctionType, ModuleType
from typing import Any, Final

import ray.tune.impl.tuner_internal
import ray.tune.tune

Change = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_changes: ContextVar[tuple[Change, ...]] = ContextVar("changes_of_tune_run", default=())
_lock: Final = threading.Lock()
_changed: dict[Any, Any] = {}
"""The replacement for each original function."""
_num_blocks = 0


@contextmanager
def changed_tune_run(change: Change) -> Iterator[None]:
    """Replace the arguments of each call of ``tune.run`` in the block.

    In nested blocks, only the innermost change applies. Only calls in this thread or asynchronous task are affected.

    Args:
        change: A function that receives the arguments by name, and returns the arguments to replace or add.
    """
    _replace()
    token = _changes.set((*_changes.get(), change))
    try:
        yield
    finally:
        _changes.reset(token)
        _restore()


def _replace() -> None:
    global _num_blocks
    with _lock:
        _num_blocks += 1
        if _num_blocks == 1:
            # These functions differ if other code has wrapped one of them.
            originals = {ray.tune.run, ray.tune.tune.run, ray.tune.impl.tuner_internal.run}
            _changed.update({original: _with_changes(original) for original in originals})
        _rebind(_changed)


def _restore() -> None:
    global _num_blocks
    with _lock:
        _num_blocks -= 1
        if _num_blocks == 0:
            # This also restores the references in modules that were imported during the block.
            _rebind({changed: original for original, changed in _changed.items()})
            _changed.clear()


def _rebind(replacements: Mapping[Any, Any]) -> None:
    """Replace functions in the namespaces of all modules."""
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()) if isinstance(module, ModuleType) else ():
            if type(value) is FunctionType and value in replacements:
                setattr(module, name, replacements[value])


def _with_changes(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        changes = _changes.get()
        if changes:
            bound = signature.bind(*args, **kwargs)
            return original(**{**bound.arguments, **changes[-1](bound.arguments)})
        return original(*args, **kwargs)

    return run
