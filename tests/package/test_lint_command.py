"""``tune-policies lint`` as a user types it."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.manifests_with import changed
from tune_policies.cli.main import app
from tune_policies.files.yaml_documents import read_documents
from tune_policies.kuberay.lint.crd import load_crds
from tune_policies.kuberay.lint.rules import all_rules

DEFINITIONS = Path(os.environ.get("TUNE_POLICIES_CRDS") or "no-definitions")
cached_crds = cache(load_crds)  # to read them takes seconds
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "lint-rules.md"


def run(*arguments, text=None):
    done = CliRunner().invoke(app, ["lint", *map(str, arguments)], input=text)
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


def test_an_error_is_told_with_its_line_why_it_matters_and_the_way_out(write):
    path = write(spec__workerGroupSpecs__0__minReplicas=5)

    done = run(path)

    line = path.read_text().splitlines().index("    minReplicas: 5") + 1
    assert done.exit_code == 1
    assert f"{path}:{line}: error min-above-max: group 'small' has minReplicas 5 above maxReplicas 4\n" in done.stdout
    assert "    why: From KubeRay 1.6 on the operator refuses the cluster" in done.stdout
    assert "    fix: raise maxReplicas to 5, or lower minReplicas to 4\n" in done.stdout


def test_notes_alone_are_no_failure(write):
    requests = {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "4", "memory": "4Gi"}}

    done = run(write(spec__workerGroupSpecs__0__template__spec__containers__0__resources=requests))

    assert done.exit_code == 0
    assert "note memory-not-kept" in done.stdout


@pytest.fixture
def two(tmp_path):
    """A file of two clusters, with one mistake in each that can be mended."""
    path = tmp_path / "two.yaml"
    mistakes = ({"metadata.name": "one", "spec.workerGroupSpecs.0.replicas": 9}, {"metadata.name": "two"})
    path.write_text("---\n".join(changed("RayCluster", {**mistakes[0], **each}) for each in mistakes))
    return path


def test_a_name_picks_one_of_several_clusters(two):
    found = json.loads(run(two, "--name", "two", "--json").stdout)["findings"]

    assert {each["document"] for each in found} == {1}


def test_a_name_that_no_cluster_of_the_file_has_is_wrong_usage(two):
    done = run(two, "--name", "three")

    assert (done.exit_code, done.stdout) == (2, "")
    assert re.search(r"two\.yaml has no cluster 'three'\. It has 'one', 'two'", done.stderr)


def test_only_the_cluster_of_the_name_is_mended(two):
    run(two, "--name", "two", "--fix")

    first, second = read_documents(two.read_text(), "two.yaml")
    replicas = [each.data["spec"]["workerGroupSpecs"][0]["replicas"] for each in (first, second)]
    assert replicas == [9, 4]


def test_what_is_piped_in_is_checked():
    done = run("-", text=changed("RayCluster", {"spec.workerGroupSpecs.0.minReplicas": 5}))

    assert done.exit_code == 1
    assert "-:" in done.stdout


def test_json_is_for_machines(write):
    done = run(write(spec__workerGroupSpecs__0__minReplicas=5), "--json")

    (found,) = [each for each in json.loads(done.stdout)["findings"] if each["rule"] == "min-above-max"]
    assert found["path"] == ["spec", "workerGroupSpecs", 0, "minReplicas"]


def test_fix_writes_what_is_safe_and_says_so(write):
    path = write(spec__workerGroupSpecs__0__replicas=9)

    done = run("--fix", path)

    assert "fixed replicas-outside" in done.stdout
    assert "    spec.workerGroupSpecs.0.replicas is now 4\n" in done.stdout
    assert read_documents(path.read_text(), "")[0].data["spec"]["workerGroupSpecs"][0]["replicas"] == 4


def test_what_may_change_what_runs_is_told_of_and_written_only_on_request(write):
    path = write(spec__workerGroupSpecs__0__resources={"gpu": "1", "CPU": "4"})
    before = path.read_text()

    told = run("--fix", path)
    assert path.read_text() == before
    assert told.stdout.endswith("not applied, as what runs may change: 1 change (--fix --unsafe-fixes)\n")

    run("--fix", "--unsafe-fixes", path)
    assert read_documents(path.read_text(), "")[0].data["spec"]["workerGroupSpecs"][0]["resources"]["GPU"] == "1"


def test_diff_shows_what_fix_would_write_and_writes_nothing(write):
    path = write(spec__workerGroupSpecs__0__replicas=9)
    before = path.read_text()

    done = run("--fix", "--diff", path)
    told = json.loads(run("--fix", "--diff", "--json", path).stdout)

    unwritten = path.read_text()
    run("--fix", path)
    lines = done.stdout.splitlines()
    assert (done.exit_code, unwritten) == (1, before)
    assert lines[:2] == [f"--- {path}", f"+++ {path}"]
    assert [line for line in lines[2:] if line[0] in "+-"] == ["-    replicas: 9", "+    replicas: 4"]
    assert (told["diff"], len(told["fixed"])) == (lines, 1)
    assert "    replicas: 4" in path.read_text().splitlines()


def test_without_fix_no_file_changes(write):
    path = write(spec__workerGroupSpecs__0__replicas=9)
    before = path.read_text()

    run(path)

    assert path.read_text() == before


def test_a_file_that_cannot_be_read_is_told_beside_the_others(write, tmp_path):
    done = run(write(spec__workerGroupSpecs__0__minReplicas=5), tmp_path / "none.yaml")

    assert "error min-above-max" in done.stdout
    assert "none.yaml:1: error unreadable" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [["--fix", "-"], ["--crd", "none", "x.yaml"], ["--unsafe-fixes", "x.yaml"], ["--diff", "x.yaml"], []],
    ids=["stdin", "no crd", "no --fix", "a diff of nothing", "no file"],
)
def test_wrong_usage_ends_with_2(arguments):
    command = [sys.executable, "-m", "tune_policies", "lint", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not DEFINITIONS.is_dir(), reason="TUNE_POLICIES_CRDS names no folder")
def test_with_the_official_definitions_a_field_that_would_be_dropped_is_found(write):
    done = run(write(spec__workerGroupSpecs__0__maxReplica=5), "--crd", DEFINITIONS / "v1.7.0")

    assert "against-definition: unknown field 'maxReplica'; did you mean 'maxReplicas'?" in done.stdout
    assert "misspelled-field" not in done.stdout


@pytest.mark.skipif(not DEFINITIONS.is_dir(), reason="TUNE_POLICIES_CRDS names no folder")
def test_a_field_that_only_some_versions_know_is_told_with_them(write):
    done = run(write(spec__workerGroupSpecs__0__priority=1), "--crd", DEFINITIONS)

    assert "unknown field 'priority' (by v1.5.2, v1.6.2)" in done.stdout


@pytest.mark.skipif(not DEFINITIONS.is_dir(), reason="TUNE_POLICIES_CRDS names no folder")
@pytest.mark.parametrize("kind", ["RayCluster", "RayJob", "RayService"])
def test_the_sound_manifests_of_these_tests_are_sound_by_all_versions(kind):
    (document,) = read_documents(changed(kind, {}), "")

    assert cached_crds(DEFINITIONS).problems(document.data) == []


def rows():
    return [f"| `{rule.name}` | {rule.severity} | {rule.why} |" for rule in all_rules()]


def test_the_page_has_the_rules_as_they_are():
    on_page = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]

    assert on_page == rows(), "python -m tests.package.test_lint_command writes them into the page"


def _write_rows():
    before, _, rest = PAGE.read_text().partition("| `")
    after = re.sub(r"\A.*?\n(?!\|)", "", rest, count=1, flags=re.DOTALL)
    PAGE.write_text(before + "\n".join(rows()) + "\n" + after)


if __name__ == "__main__":
    _write_rows()
