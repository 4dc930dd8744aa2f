"""Tests of the built package: its content, equal bytes in each build, and its use in a new environment."""

import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.rest  # the build is slow


def build(out):
    """Build a source distribution, and a wheel from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: path for path in out.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("dist"))


def only_wheel(built):
    (path,) = [path for name, path in built.items() if name.endswith(".whl")]
    return path


@pytest.fixture(scope="module")
def wheel(built):
    """Return the files of the wheel."""
    with zipfile.ZipFile(only_wheel(built)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_wheel_installs_only_one_package(wheel):
    top = {name.partition("/")[0] for name in wheel}

    assert {name for name in top if not name.endswith(".dist-info")} == {"tune_policies"}


def test_a_wheel_contains_all_modules_schemas_and_templates_and_py_typed(wheel):
    wanted = ("*.py", "*.schema.json", "grafana_dashboard.json", "*.j2", "py.typed")
    folders = {"tune_policies": "", "trainers": "tune_policies/", "benchmarks": "tune_policies/"}
    sources = {
        f"{above}{path.relative_to(ROOT).as_posix()}"
        for folder, above in folders.items()
        for pattern in wanted
        for path in (ROOT / folder).rglob(pattern)
    }

    assert {
        name for name in wheel if name.endswith((".py", ".schema.json", "grafana_dashboard.json", ".j2", "py.typed"))
    } == sources
    assert {"tune_policies/trainers/process/process_setup.py", "tune_policies/files/page.html.j2"} <= sources
    assert "tune_policies/kuberay/lint/pod_template.json" in wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


def test_two_builds_have_the_same_bytes(built, tmp_path):
    again = build(tmp_path)

    assert {name: path.read_bytes() for name, path in again.items()} == {
        name: path.read_bytes() for name, path in built.items()
    }


def needed_packages(requirements):
    """Return the distributions that the requirements need, directly or indirectly, with the requested extras."""
    found = {}
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        wanted = waiting.pop()
        name, extras = wanted.name.lower(), {"", *wanted.extras}
        if not extras <= found.get(name, set()):
            found[name] = found.get(name, set()) | extras
            inner = [Requirement(line) for line in distribution(name).requires or ()]
            waiting += [
                needed
                for needed in inner
                if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
            ]
    return [distribution(name) for name in found]


@pytest.fixture(scope="module")
def new_environment(built, tmp_path_factory):
    """Return the ``bin`` of an environment with the wheel and links to the packages that its metadata requires."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, only_wheel(built)], check=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    metadata = next(packages.glob("tune_policies-*.dist-info/METADATA")).read_text()
    declared = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata, re.MULTILINE)
    for needed in needed_packages(declared):
        for top in {file.parts[0] for file in needed.files if file.parts[0] not in ("..", "__pycache__")}:
            link = packages / top
            if not link.exists():
                link.symlink_to(needed.locate_file(top))
    return folder / "bin"


def test_the_program_of_the_readme_runs_with_only_the_declared_dependencies(
    new_environment, tmp_path, isolated_environment
):
    (program,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "first.py").write_text(program)
    environment = {name: text for name, text in isolated_environment.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [new_environment / "python", "first.py"],
        cwd=tmp_path,
        env={**environment, "PATH": f"{new_environment}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "at once" in done.stdout


def test_the_command_of_the_wheel_runs_with_only_the_declared_dependencies(new_environment):
    done = subprocess.run(
        [new_environment / "tune-policies", "schema"], capture_output=True, text=True, check=False, env={}
    )

    assert done.returncode == 0, done.stderr
    assert "GpuPolicy" in done.stdout
