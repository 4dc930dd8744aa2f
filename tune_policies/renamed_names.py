"""Public names that were renamed and still work for one minor version, with a warning.

To rename a public name, add a line to ``RENAMED``. To remove a name without a replacement, keep it for one minor
version with a ``DeprecationWarning`` in its own code.
"""

import warnings
from typing import Final

RENAMED: Final[dict[str, dict[str, str]]] = {
    "tune_policies": {},
    "tune_policies.kuberay": {},
    "tune_policies.trainers": {},
}
"""The new name of each renamed name, by package. Remove an entry in the second minor version after the renaming."""


def new_name(package: str, name: str) -> str | None:
    """Return the new name of a renamed public name and issue a ``DeprecationWarning``, or return ``None``.

    The packages call this function in their module-level ``__getattr__``, so that the warning shows the user's line.
    """
    new = RENAMED[package].get(name)
    if new is not None:
        text = f"{package}.{name} is now {package}.{new}. Write {new}, because the next minor version removes {name}"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
    return new
