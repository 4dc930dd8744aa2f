"""Changes the arguments of ``tune.run`` for a block, however a library calls it.

Libraries call ``tune.run``, ``tune.run_experiments``, ``Tuner.fit`` or a restored ``Tuner``. All of them call the
function ``ray.tune.run``, which Ray holds under three names, and any module may have imported it under another. Ray has
no hook there, so the references are replaced for the duration of the block. The same in Ray 2.50 and 2.60.
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
"""Of each function that was replaced, the one in its place."""
_num_blocks = 0


@contextmanager
def changed_tune_run(change: Change) -> Iterator[None]:
    """Call each ``tune.run`` of the block with the arguments that ``change`` returns beside its own.

    Of nested blocks, the innermost counts. Only this thread, or asynchronous task, is affected.

    Args:
        change: Is called with the arguments by name, and returns those to replace.
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
            # They differ where somebody has wrapped one of them.
            originals = {ray.tune.run, ray.tune.tune.run, ray.tune.impl.tuner_internal.run}
            _changed.update({original: _with_changes(original) for original in originals})
        _rebind(_changed)


def _restore() -> None:
    global _num_blocks
    with _lock:
        _num_blocks -= 1
        if _num_blocks == 0:  # also in modules that were imported in the block
            _rebind({changed: original for original, changed in _changed.items()})
            _changed.clear()


def _rebind(replacements: Mapping[Any, Any]) -> None:
    """Replace functions wherever a module has them by name."""
    for module in list(sys.modules.values()):
        for name, value in list(_names(module).items()):
            if type(value) is FunctionType and value in replacements:
                setattr(module, name, replacements[value])


def _names(module: object) -> dict[str, Any]:
    return vars(module) if isinstance(module, ModuleType) else {}


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
