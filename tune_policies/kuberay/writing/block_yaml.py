"""Writes plain data as YAML that people read: in blocks, in the order given, with a comment above."""

import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import yaml

Path: TypeAlias = tuple[str | int, ...]
"""Where a part stands: the keys and indices that lead to it."""

Optional: TypeAlias = dict[Path, Iterable[str]]
"""Lines of YAML that the reader may want, by the path of the part above which they stand."""

_WIDTH: Final = 120
_MAY_BE_ANOTHER_TYPE: Final = re.compile(r"[-+.]?\d.*|[yn~]", re.IGNORECASE)
"""Plain texts that PyYAML reads as such, but Kubernetes may not: ``1e3``, ``y``; and texts that look like numbers."""


class _BlockDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # limits and requests are equal, and both written out


def _represent_text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    tag = "tag:yaml.org,2002:str"
    resolved = dumper.resolve(yaml.ScalarNode, data, (True, False))  # type: ignore[no-untyped-call]
    lines = data.split("\n")
    if len(lines) > 1 and all(line.isprintable() for line in lines):
        return dumper.represent_scalar(tag, data, style="|")
    # Of line breaks there are more than one kind; in double quotes each is escaped.
    is_plain = resolved == tag and data.isprintable() and not _MAY_BE_ANOTHER_TYPE.fullmatch(data)
    return dumper.represent_scalar(tag, data, style=None if is_plain else '"')


_BlockDumper.add_representer(str, _represent_text)


def to_block_yaml(data: Mapping[str, Any], comments: Iterable[str], optional: Optional) -> str:
    """Return the text of one document.

    Args:
        data: Mappings, lists, texts, numbers, truth values.
        comments: What stands above it, a paragraph each.
        optional: They stand above the parts as comments, as deep as the part.
    """
    body = yaml.dump(data, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    root = yaml.compose(body, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    lines = body.split("\n")
    above = sorted(((_position(root, path), texts) for path, texts in optional.items()), key=lambda each: each[0])
    for (line, column), texts in reversed(above):
        lines[line:line] = [f"{' ' * column}# {text}" for text in texts]
    return "".join(f"{line}\n" for paragraph in comments for line in _comment(paragraph)) + "\n".join(lines)


def _position(node: Any, path: Path) -> tuple[int, int]:
    """Return the line and the column where the part at the path begins, with its key or its dash."""
    mark = node.start_mark
    for step in path:
        if isinstance(node, yaml.SequenceNode):
            node = node.value[int(step)]
            mark = node.start_mark
            column = mark.column - len("- ")
        else:
            key, node = next(pair for pair in node.value if pair[0].value == step)
            mark = key.start_mark
            column = mark.column
    return mark.line, column


def _comment(paragraph: str) -> list[str]:
    text = " ".join("".join(char if char.isprintable() else " " for char in paragraph).split())
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
