"""Tests of the command ``kuberay lint``: its output, its exit status, and the page of rules."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.kuberay.manifests_with import changed
from tune_policies.cli.main import app
from tune_policies.kuberay.lint.rules import ALL_RULES

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "lint.md"


def run(*arguments, text=None):
    done = CliRunner().invoke(app, ["kuberay", "lint", *map(str, arguments)], input=text)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def write(tmp_path):
    def write(name="demo.yaml", **changes):
        path = tmp_path / name
        path.write_text(changed("RayCluster", {key.replace("__", "."): value for key, value in changes.items()}))
        return path

    return write


def test_an_error_is_reported_with_its_line_reason_and_fix(write):
    path = write(spec__workerGroupSpecs__0__minReplicas=5)

    done = run(path)

    line = path.read_text().splitlines().index("    minReplicas: 5") + 1
    assert done.exit_code == 1
    assert f"{path}:{line}: error min-above-max: group 'small' has minReplicas 5 above maxReplicas 4\n" in done.stdout
    assert "    why: KubeRay 1.6 and newer refuse the cluster" in done.stdout
    assert "    fix: raise maxReplicas to 5, or lower minReplicas to 4\n" in done.stdout


def test_the_exit_status_is_0_if_there_are_only_notes(write):
    requests = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4", "memory": "4Gi"}}

    done = run(write(spec__workerGroupSpecs__0__template__spec__containers__0__resources=requests))

    assert done.exit_code == 0
    assert "note memory-not-reserved" in done.stdout


@pytest.fixture
def two(tmp_path):
    """A file with two clusters that have the same mistake."""
    path = tmp_path / "two.yaml"
    mistakes = ({"metadata.name": "one", "spec.workerGroupSpecs.0.replicas": 9}, {"metadata.name": "two"})
    path.write_text("---\n".join(changed("RayCluster", {**mistakes[0], **each}) for each in mistakes))
    return path


def test_the_name_option_selects_one_of_several_clusters(two):
    found = json.loads(run(two, "--name", "two", "--json").stdout)["findings"]

    assert {each["document"] for each in found} == {1}


def test_json_contains_the_path_of_a_finding(write):
    done = run(write(spec__workerGroupSpecs__0__minReplicas=5), "--json")

    (found,) = [each for each in json.loads(done.stdout)["findings"] if each["rule"] == "min-above-max"]
    assert found["path"] == ["spec", "workerGroupSpecs", 0, "minReplicas"]


def test_a_missing_file_does_not_hide_the_findings_in_other_files(write, tmp_path):
    done = run(write(spec__workerGroupSpecs__0__minReplicas=5), tmp_path / "none.yaml")

    assert "error min-above-max" in done.stdout
    assert "none.yaml:1: error unreadable" in done.stdout


def test_the_summary_lists_the_parts_that_were_not_checked(tmp_path):
    path = tmp_path / "demo.yaml"
    path.write_text(changed("RayCluster", {"spec.workerGroupSpecs.0.template": "none"}))

    done = run(path)

    line = path.read_text().splitlines().index("    template: none") + 1
    name = "spec.workerGroupSpecs[0].template"
    assert done.stdout.splitlines()[-1] == f"not checked further because of its mistake: {name} ({path}:{line})"


def rows():
    return [f"| `{rule.name}` | {rule.severity} | {rule.why} |" for rule in ALL_RULES]


def test_the_page_lists_all_rules():
    on_page = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]

    assert on_page == rows(), "run python -m tests.package.kuberay.test_lint_command to write the rules to the page"


def _write_rows():
    before, _, rest = PAGE.read_text().partition("\n| `")
    after = re.sub(r"\A.*?\n(?!\|)", "", rest, count=1, flags=re.DOTALL)
    PAGE.write_text(before + "\n" + "\n".join(rows()) + "\n" + after)


if __name__ == "__main__":
    _write_rows()


def test_lint_reads_a_manifest_from_stdin():
    done = run("-", text=changed("RayCluster", {"spec.workerGroupSpecs.0.minReplicas": 5}))

    assert done.exit_code == 1
    assert "-:" in done.stdout
