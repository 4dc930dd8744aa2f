"""What the command ``packing`` refuses before it starts a Ray."""

from typer.testing import CliRunner

from benchmarks.cli import app


def test_a_record_that_is_there_is_not_written_over(tmp_path):
    output = tmp_path / "packing.json"
    output.write_text("mine")

    done = CliRunner().invoke(app, ["packing", "--output", str(output)])

    assert done.exit_code == 2
    assert "name another file" in done.stderr
    assert output.read_text() == "mine"
