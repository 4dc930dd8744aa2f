"""Tests that the command ``bench packing`` reports invalid usage before Ray starts."""

import pytest
from typer.testing import CliRunner

from tune_policies.benchmarks.cli import app


def test_an_existing_record_is_not_overwritten(tmp_path):
    output = tmp_path / "packing.json"
    output.write_text("mine")

    done = CliRunner().invoke(app, ["packing", "--output", str(output)])

    assert done.exit_code == 2
    assert "choose another file" in done.stderr
    assert output.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "mpl"], "unknown workload 'mpl'; did you mean 'mlp'?"),
        (["--workload", "tf-mlp"], "tf-mlp: pass --size and --steps"),
        (["--workload", "tests.models:mlp", "--size", "64"], "tests.models:mlp: pass --steps"),
    ],
    ids=["an unknown workload", "no size", "no steps"],
)
def test_an_invalid_training_is_refused_before_anything_starts(arguments, message):
    done = CliRunner().invoke(app, ["packing", *arguments])

    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
