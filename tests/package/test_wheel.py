"""Tests that the wheel contains only the package tune_policies, which includes the trainers and the benchmarks."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.rest  # the build is slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the files of a wheel built from a source distribution."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
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
