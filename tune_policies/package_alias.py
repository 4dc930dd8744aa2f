"""Lets ``trainers`` and ``benchmarks`` in a checkout be ``tune_policies.trainers`` and ``tune_policies.benchmarks``.

Only the long names are installed. In a checkout, both folders are beside this package, where Python finds them by their
short names. A second copy of the modules would have a second state of the process, so each short name gets the module
of the long one.

The long names need the symbolic links in ``tune_policies``. Hatchling can map the folders only when it builds a wheel:
an editable install refuses a ``sources`` option that changes a prefix, and copies the files of ``force-include``. A
checkout that is not installed has no mapping at all.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any


def use_long_name(short: str) -> None:
    """Let ``short``, which is being imported, be ``tune_policies.<short>``, and so all that is in it.

    Args:
        short: The name of a package in ``tune_policies``, without a dot.
    """
    sys.modules[short] = import_module(_long(short))
    sys.meta_path.insert(0, _ShortNames(short))


class _ShortNames(MetaPathFinder, Loader):
    """Finds what is in one of the packages by its short name."""

    def __init__(self, short: str) -> None:
        self._short = short

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        # A package of the user's may have taken the short name since.
        is_ours = sys.modules.get(self._short) is sys.modules.get(_long(self._short))
        if not (name.startswith(f"{self._short}.") and is_ours and (found := find_spec(_long(name)))):
            return None
        spec = ModuleSpec(name, self, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def exec_module(self, module: ModuleType) -> None:
        # Python takes what stands in sys.modules once the module has run. The module itself is never given the short
        # name's spec, as ``create_module`` would do: its own says what it is.
        sys.modules[module.__name__] = import_module(_long(module.__name__))

    def get_code(self, name: str) -> CodeType | None:
        """Return what ``python -m`` runs."""
        code: CodeType | None = find_spec(_long(name)).loader.get_code(_long(name))  # type: ignore[union-attr]
        return code


def _long(name: str) -> str:
    return f"{__package__}.{name}"
