"""Reads the examples of the reference, which the site shows on the page of each name."""

import re
from pathlib import Path

FILE = Path(__file__).parents[1] / "docs" / "reference" / "examples.txt"


def examples():
    """Return the examples by the part of the file: ``""``, ``"Ray"`` or ``"GPU"``, and by name."""
    parts = {"": {}, "Ray": {}, "GPU": {}}
    part = ""
    for name, text in re.findall(r"^\[(\w+)\]$(.*?)(?=^\[\w+\]$|\Z)", FILE.read_text(), re.MULTILINE | re.DOTALL):
        if name in parts:
            part = name
        else:
            parts[part][name] = text.strip() + "\n"
    return parts


def failures_of(name, text):
    """Run an example, and return the differences from its output."""
    import doctest

    found = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, str(FILE), 0)
    doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=found.append)
    return "".join(found)
