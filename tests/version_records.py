"""Records which versions of Ray, Python and PyTorch passed which tests. Pytest loads this module in ``conftest``.

``pytest --record-as "main paths"`` writes an entry into ``docs/evidence/versions.json`` if no test failed. The page on
supported versions shows these entries as a table, which ``docs/conf.py`` makes.
"""

import json
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RECORDS = Path(__file__).parents[1] / "docs" / "evidence" / "versions.json"
SUITES = ("unit tests", "Ray internals", "main paths", "all tests")
SAME = ("python", "ray", "torch", "system", "suite")
"""The fields in which an entry equals the entry that it replaces."""


def pytest_addoption(parser):
    parser.addoption("--record-as", choices=SUITES, help="record the versions and the number of passed tests")


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Record a run without failures. Only the main process of a parallel run calls this hook."""
    suite = config.getoption("--record-as")
    if suite and exitstatus == 0:
        passed = len(terminalreporter.stats.get("passed", ()))
        RECORDS.write_text(as_json(replaced(json.loads(RECORDS.read_text()), entry(suite, passed))))


def entry(suite, passed):
    return {
        "python": platform.python_version(),
        "ray": version("ray"),
        "torch": _version_or_none("torch"),
        "system": f"{platform.system()} {platform.machine()}",
        "suite": suite,
        "passed": passed,
        "date": datetime.now(UTC).date().isoformat(),
    }


def _version_or_none(package):
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def replaced(entries, new):
    """Return the entries in a stable order, with ``new`` instead of the entry for the same versions and tests."""
    kept = [old for old in entries if any(old[field] != new[field] for field in SAME)]
    return sorted([*kept, new], key=lambda entry: [str(entry[field]) for field in SAME])


def as_json(entries):
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in entries)
    return f"[\n{lines}\n]\n"


def table(entries):
    """Return the entries as a Markdown table with a row for each set of versions and a dated cell for each suite."""
    rows = {}
    for entry in entries:
        row = rows.setdefault((entry["python"], entry["ray"], entry["torch"] or "-", entry["system"]), {})
        row[entry["suite"]] = f"{entry['passed']:,} passed, {entry['date']}"
    lines = [f"| Python | Ray | PyTorch | System | {' | '.join(SUITES)} |", "|---|---|---|---|" + "---|" * len(SUITES)]
    for versions, row in rows.items():
        cells = [*versions, *(row.get(suite, "-") for suite in SUITES)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(json.loads(RECORDS.read_text())))
