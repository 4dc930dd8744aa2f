"""Loads the packages that are installed beside this one under a second name, which no project of a user has.

``trainers`` and ``benchmarks`` are common names. Where a user's project has its own, Python finds that one first;
``tune_policies.trainers`` and ``tune_policies.benchmarks`` are then the way to these, in Ray's workers too.
"""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def load_sibling(alias: str, *, known_by: str) -> None:
    """Put a package into ``sys.modules`` as ``alias``: the same files, but modules of its own.

    Args:
        alias: The second name, such as ``"tune_policies.trainers"``.
        known_by: A file by which the package is told from a user's of the same name.

    Raises:
        ModuleNotFoundError: The package is neither beside this one nor on ``sys.path``.
    """
    name = alias.rpartition(".")[2]
    # Beside this one in an installation; anywhere on the path where Ray ships each package by itself.
    places = [Path(__file__).resolve().parents[1], *map(Path, sys.path)]
    folder = next((place / name for place in places if (place / name / known_by).is_file()), None)
    if folder is None:
        raise ModuleNotFoundError(f"the package {name!r} of tune-policies is not installed", name=alias)
    init = str(folder / "__init__.py")
    loader = SourceFileLoader(alias, init)
    spec = spec_from_file_location(alias, init, loader=loader, submodule_search_locations=[str(folder)])
    module = module_from_spec(spec)  # type: ignore[arg-type]  # a loader is given, so there is a spec
    sys.modules[alias] = module
    loader.exec_module(module)
