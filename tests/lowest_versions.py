"""Prints pip constraints with the lowest version of each direct dependency that ``pyproject.toml`` allows.

``make test-lowest`` runs this program before the installation, with the extras as arguments. The Makefile pins
PyTorch.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest_versions(extras: Iterable[str]) -> list[str]:
    """Return a constraint for each dependency that has a minimum version."""
    project = tomllib.loads(_PROJECT.read_text())["project"]
    needs = [*project["dependencies"], *(each for name in extras for each in project["optional-dependencies"][name])]
    found = (re.match(r"([\w.-]+)(?:\[[^]]*\])?>=([\w.]+)", each) for each in needs)
    return sorted({f"{each[1]}=={each[2]}" for each in found if each and each[1] != "torch"})


if __name__ == "__main__":
    print(*lowest_versions(sys.argv[1:]), sep="\n")
