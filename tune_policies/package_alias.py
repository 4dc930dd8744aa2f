"""Makes ``trainers`` and ``benchmarks`` aliases of ``tune_policies.trainers`` and ``tune_policies.benchmarks``.

Only the long names are installed. In a checkout, both folders are next to this package, so Python also finds them by
their short names. A second copy of the modules would have its own state, so each short name is an alias of the
module with the long name.

The long names need the symbolic links in ``tune_policies``. Hatchling can map the folders only when it builds a wheel.
An editable install rejects a ``sources`` option that changes a prefix, and copies the files of ``force-include``. A
checkout that is not installed has no mapping.
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
    """Make the package ``short`` and its submodules aliases of ``tune_policies.<short>`` while ``short`` is imported.

    Args:
        short: The name of a package in ``tune_policies``, without a dot.
    """
    sys.modules[short] = import_module(_long(short))
    sys.meta_path.insert(0, _ShortNames(short))


class _ShortNames(MetaPathFinder, Loader):
    """Finds the submodules of one of the packages by their short names."""

    def __init__(self, short: str) -> None:
        self._short = short

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        # A user's package may have replaced the short name.
        is_ours = sys.modules.get(self._short) is sys.modules.get(_long(self._short))
        if not is_ours or not name.startswith(f"{self._short}."):
            return None
        found = find_spec(_long(name))
        if found is None:
            return None
        spec = ModuleSpec(name, self, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def exec_module(self, module: ModuleType) -> None:
        # Python uses the entry in sys.modules after this call. This class does not define ``create_module``,
        # because Python would then replace the spec of the module with the spec of the short name.
        sys.modules[module.__name__] = import_module(_long(module.__name__))

    def get_code(self, name: str) -> CodeType | None:
        """Return the code that ``python -m`` runs."""
        code: CodeType | None = find_spec(_long(name)).loader.get_code(_long(name))  # type: ignore[union-attr]
        return code


def _long(name: str) -> str:
    return f"{__package__}.{name}"
