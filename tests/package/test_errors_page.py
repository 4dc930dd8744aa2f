"""Tests that the page of errors quotes messages that exist in the code, and that it lists every error."""

import ast
import re
from pathlib import Path

import tune_policies

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()
QUOTED = re.findall(r"^\| `([^`]+)` \| .+ \| .+ \|$", PAGE, re.MULTILINE)


def texts():
    """Yield every string in the code, with an ellipsis in place of each inserted value."""
    for folder in ("tune_policies", "trainers", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_each_message_on_the_page_exists_in_the_code():
    written = list(texts())

    assert [message for message in QUOTED if not any(is_in(message.split("…"), text) for text in written)] == []


def is_in(parts, text):
    """Return whether the text contains all parts in this order."""
    return parts[0] in text and re.search(".*".join(map(re.escape, parts)), text, re.DOTALL)


def test_every_error_has_a_section_with_messages():
    errors = {name for name in tune_policies.__all__ if name.endswith("Error")} - {"ResourcePolicyError"}

    assert set(re.findall(r"^## (\w+Error)$", PAGE, re.MULTILINE)) == errors
    assert len(QUOTED) > 50
