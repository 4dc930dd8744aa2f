"""The environment variable with the callbacks that Ray Train adds to every run of a process.

This module does not import Ray Train, which takes about a second, because most trials do not use it.
"""

import os
from typing import Final

_VARIABLE: Final = "RAY_TRAIN_CALLBACKS"


def set_train_callback(path: str, *, is_active: bool) -> None:
    """Add a callback class to the Train runs of this process, or remove it. The user's callbacks are kept.

    Args:
        path: The module and the class, such as ``"package.module.Class"``.
        is_active: Whether the callback is added.
    """
    given = [part.strip() for part in os.environ.get(_VARIABLE, "").split(",")]
    paths = [name for name in given if name and name != path]
    if is_active:
        paths.append(path)
    if paths:
        os.environ[_VARIABLE] = ",".join(paths)
    else:
        os.environ.pop(_VARIABLE, None)
