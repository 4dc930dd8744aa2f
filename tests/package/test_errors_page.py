"""The page of errors quotes messages that the code writes, and has every error."""

import ast
import re
from pathlib import Path

import pytest

import tune_policies

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()
QUOTED = re.findall(r"^\| `([^`]+)` \| .+ \| .+ \|$", PAGE, re.MULTILINE)


def texts():
    """Yield every text of the code, with an ellipsis for what is filled in."""
    for folder in ("tune_policies", "trainers", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


TEXTS = list(texts())


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_on_the_page_is_one_that_the_code_writes(message):
    wanted = re.compile(".*".join(re.escape(part) for part in message.split("…")), re.DOTALL)

    assert any(wanted.search(text) for text in TEXTS)


def test_every_error_has_a_section_with_messages():
    errors = {name for name in tune_policies.__all__ if name.endswith("Error")} - {"ResourcePolicyError"}

    assert set(re.findall(r"^## (\w+Error)$", PAGE, re.MULTILINE)) == errors
    assert len(QUOTED) > 50
