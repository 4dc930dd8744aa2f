"""What the command ``packing`` refuses before it starts a Ray."""

import pytest
from typer.testing import CliRunner

from tune_policies.benchmarks.cli import app


def test_a_record_that_is_there_is_not_written_over(tmp_path):
    output = tmp_path / "packing.json"
    output.write_text("mine")

    done = CliRunner().invoke(app, ["packing", "--output", str(output)])

    assert done.exit_code == 2
    assert "choose another file" in done.stderr
    assert output.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workload", "mpl"], "unknown workload 'mpl'; did you mean 'mlp'?"),
        (["--workload", "tf-mlp"], "tf-mlp: give --size and --steps"),
        (["--workload", "tests.models:mlp", "--size", "64"], "tests.models:mlp: give --steps"),
    ],
    ids=["an unknown workload", "one without its size", "one without its steps"],
)
def test_what_a_trial_cannot_do_is_refused_before_anything_starts(arguments, says):
    done = CliRunner().invoke(app, ["packing", *arguments])

    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())
