"""Detects whether tasks and actors of the installed Ray accept the option ``fallback_strategy``."""

import functools

import ray


@functools.cache
def supports_fallback_strategy() -> bool:
    """Return whether ``ray.remote`` accepts ``fallback_strategy``. ``ray.remote`` refuses unknown options."""
    try:
        ray.remote(fallback_strategy=[{"label_selector": {"ray.io/node-id": "!a"}}])
    except ValueError:
        return False
    return True
