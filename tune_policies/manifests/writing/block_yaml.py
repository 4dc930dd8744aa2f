"""Writes plain data as YAML that people read: in blocks, in the order given, with a comment above."""

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

_WIDTH: Final = 120
_MAY_BE_ANOTHER_TYPE: Final = re.compile(r"[-+.]?\d.*|[yn~]", re.IGNORECASE)
"""Plain texts that PyYAML reads as such, but Kubernetes may not: ``1e3``, ``y``; and texts that look like numbers."""


class _BlockDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # limits and requests are equal, and both written out


def _represent_text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    tag = "tag:yaml.org,2002:str"
    resolved = dumper.resolve(yaml.ScalarNode, data, (True, False))  # type: ignore[no-untyped-call]
    is_plain = resolved == tag and not _MAY_BE_ANOTHER_TYPE.fullmatch(data)
    return dumper.represent_scalar(tag, data, style=None if is_plain else '"')


_BlockDumper.add_representer(str, _represent_text)


def to_block_yaml(data: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """Return the text of one document.

    Args:
        data: Mappings, lists, texts, numbers, truth values.
        comments: What stands above it, a paragraph each.
    """
    body = yaml.dump(data, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return "".join(f"{line}\n" for paragraph in comments for line in _comment(paragraph)) + body


def _comment(paragraph: str) -> list[str]:
    text = " ".join("".join(char if char.isprintable() else " " for char in paragraph).split())
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
