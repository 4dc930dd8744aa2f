"""Tests that the files that describe a release agree with ``pyproject.toml``."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_newest_release_in_the_changelog_is_the_version_of_the_project():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert next(heading for heading in headings if heading != "Unreleased") == PROJECT["version"]


CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_citation_has_the_required_keys_and_agrees_with_the_project():
    """The required keys and the forms of authors are those of the Citation File Format 1.2.0."""
    assert CITATION.keys() >= {"cff-version", "message", "title", "authors"}
    assert all("name" in author or "family-names" in author for author in CITATION["authors"])
    assert (CITATION["title"], CITATION["abstract"]) == (PROJECT["name"], PROJECT["description"])
    assert (CITATION["version"], CITATION["license"]) == (PROJECT["version"], PROJECT["license"])


RECIPE = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text())


def conda_requirements(requirement):
    """Return the packages of conda-forge for a requirement. Conda-forge has a package for each extra of Ray."""
    name, extras, versions = re.fullmatch(r"([\w-]+)(?:\[(.+)\])?(>=.+)", requirement).groups()
    packages = [f"{name}-{extra}" for extra in extras.split(",")] if extras else [name]
    return {f"{package} {versions}" for package in packages}


def test_the_conda_recipe_requires_what_the_project_declares():
    declared = {package for line in PROJECT["dependencies"] for package in conda_requirements(line)}
    of_the_build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]

    python, *packages = RECIPE["requirements"]["run"]
    assert set(packages) == declared
    assert (
        python.replace("${{ python_min }}", RECIPE["context"]["python_min"]) == f"python {PROJECT['requires-python']}"
    )
    assert {package for line in of_the_build for package in conda_requirements(line)} <= set(
        RECIPE["requirements"]["host"]
    )


def test_the_conda_recipe_has_the_name_version_license_and_commands_of_the_project():
    commands = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]

    assert (RECIPE["package"]["name"], RECIPE["context"]["version"]) == (PROJECT["name"], PROJECT["version"])
    assert (RECIPE["about"]["license"], RECIPE["about"]["summary"]) == (PROJECT["license"], PROJECT["description"])
    assert RECIPE["build"]["python"]["entry_points"] == commands


FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_has_the_keys_that_github_requires(path):
    form = yaml.safe_load(path.read_text())
    questions = [question for question in form["body"] if question["type"] != "markdown"]

    assert form.keys() >= {"name", "description", "body"}
    assert {question["type"] for question in questions} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(question["attributes"]["label"] for question in questions)
    assert len({question["id"] for question in questions}) == len(questions)


def test_the_security_page_states_the_supported_version():
    minor = PROJECT["version"].rpartition(".")[0]

    assert f"| {minor} | Yes |" in (ROOT / "SECURITY.md").read_text()


SUPPORT = (ROOT / "docs" / "support.md").read_text()


def test_the_support_page_names_the_parts_that_need_linux_and_how_to_report_a_problem():
    assert re.findall(r"^## (.+)$", SUPPORT, re.MULTILINE) == [
        "Maturity of public names",
        "Supported versions",
        "What needs Linux",
        "Report a problem",
    ]
