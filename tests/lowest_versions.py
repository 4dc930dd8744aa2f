"""Prints the lowest version of each direct dependency that ``pyproject.toml`` allows, as constraints for pip.

Run by ``make test-lowest``, before anything is installed. PyTorch is left out: it keeps its pin.
"""

import re
import tomllib
from pathlib import Path

_PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def lowest_versions() -> list[str]:
    """Return a constraint for each dependency that has a lowest version."""
    project = tomllib.loads(_PROJECT.read_text())["project"]
    needs = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    found = (re.match(r"([\w.-]+)(?:\[[^]]*\])?>=([\w.]+)", each) for each in needs)
    return sorted({f"{each[1]}=={each[2]}" for each in found if each and each[1] != "torch"})


if __name__ == "__main__":
    print(*lowest_versions(), sep="\n")
