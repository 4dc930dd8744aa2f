"""The demo, as `make demo` runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_finds_good_classifiers_and_says_what_each_trial_had(tmp_path, environment_of_its_own):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        cwd=tmp_path,
        env={**environment_of_its_own, "COLUMNS": "140"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout.partition("Handwritten digits: every trial")[2]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if line.startswith("│")]
    assert [row[0] for row in rows] == ["PyTorch"] * 4 + ["PyTorch Train, 2 workers"] * 2 + ["TensorFlow"] * 2
    assert all(re.search(r"\d (CPU|GPU)", row[3]) for row in rows)
    assert all(row[4] == "no GPU" or row[4].endswith("iB") for row in rows)
    assert max(float(row[2]) for row in rows) > 0.95
