import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_a_wheel_holds_the_three_packages_and_nothing_else(wheel_names):
    top = {name.partition("/")[0] for name in wheel_names}

    assert {name for name in top if not name.endswith(".dist-info")} == {"tune_policies", "trainers", "benchmarks"}


def test_a_wheel_holds_every_module_and_schema_and_the_mark_of_typed_packages(wheel_names):
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in ("tune_policies", "trainers", "benchmarks")
        for path in [
            *(ROOT / package).rglob("*.py"),
            *(ROOT / package).rglob("*.schema.json"),
            ROOT / package / "py.typed",
        ]
    }

    assert sources <= set(wheel_names)
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)


def test_a_wheel_holds_the_templates_of_a_report(wheel_names):
    templates = {path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks" / "report").glob("*.j2")}

    assert len(templates) == 2
    assert templates <= set(wheel_names)
