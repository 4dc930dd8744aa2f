"""Loads the packages that lie beside this one under a second name, which no project of a user has.

``trainers`` and ``benchmarks`` are common names. Where a user's project has its own, Python finds that one first;
``tune_policies.trainers`` and ``tune_policies.benchmarks`` are then the way to these, in Ray's workers too.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def load_sibling(alias: str) -> None:
    """Put the package that ``alias`` ends with into ``sys.modules`` as ``alias``: the same files, its own modules."""
    folder = Path(__file__).resolve().parents[1] / alias.rpartition(".")[2]
    spec = spec_from_file_location(alias, folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{folder} is not there: tune-policies is not installed as a whole", name=alias)
    module = module_from_spec(spec)
    sys.modules[alias] = module
    spec.loader.exec_module(module)
