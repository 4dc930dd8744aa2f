"""Tests that the files that describe a release agree with ``pyproject.toml``."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_newest_release_in_the_changelog_is_the_version_of_the_project():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert [heading for heading in headings if heading != "Unreleased"][0] == PROJECT["version"]
