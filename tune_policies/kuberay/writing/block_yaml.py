"""Writes plain data as readable YAML with comments, in block style and in the given order."""

import re
import textwrap
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, Final, TypeAlias

import yaml

from tune_policies.values.field_types import FrozenDict

Path: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a part of the data."""

Optional: TypeAlias = dict[Path, Iterable[str]]
"""Optional lines of YAML by path. They are written as comments above the part at this path."""

_WIDTH: Final = 120
_MAY_BE_ANOTHER_TYPE: Final = re.compile(r"[-+.]?\d.*|[yn~]", re.IGNORECASE)
"""Matches texts that Kubernetes may read as another type, such as ``1e3`` and ``y``, and texts similar to numbers."""


# PyYAML looks up a representer by the exact type, so it does not treat a subclass of ``dict`` as a mapping.
yaml.SafeDumper.add_representer(FrozenDict, yaml.SafeDumper.represent_dict)


class _BlockDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # write a part in full each time, even if the same object occurs several times


def _represent_text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    tag = "tag:yaml.org,2002:str"
    resolved = dumper.resolve(yaml.ScalarNode, data, (True, False))  # type: ignore[no-untyped-call]
    lines = data.split("\n")
    if len(lines) > 1 and all(line.isprintable() for line in lines):
        return dumper.represent_scalar(tag, data, style="|")
    is_plain = resolved == tag and data.isprintable() and not _MAY_BE_ANOTHER_TYPE.fullmatch(data)
    style = None if is_plain else '"'
    return dumper.represent_scalar(tag, data, style=style)


_BlockDumper.add_representer(str, _represent_text)


def block_text(data: Mapping[str, Any]) -> str:
    """Return a YAML document without comments."""
    text: str = yaml.dump(data, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text


def to_block_yaml(data: Mapping[str, Any], comments: Iterable[str], optional: Optional) -> str:
    """Return a YAML document with ``comments`` at its top, and optional lines as comments above their parts."""
    body = block_text(data)
    # PyYAML cannot write comments. The parsed nodes contain the lines at which the parts were written. The loader in C
    # is faster, but not every build of PyYAML has it.
    root = yaml.compose(body, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    lines = body.split("\n")
    above = [(_position(root, path), texts) for path, texts in optional.items()]
    above.sort(key=itemgetter(0))
    for (line, column), texts in reversed(above):  # from the bottom, so that the positions above stay valid
        lines[line:line] = [f"{' ' * column}# {text}" for text in texts]
    top: list[str] = []
    for paragraph in comments:
        top += _comment(paragraph)
    return "\n".join([*top, *lines])


def _position(node: Any, path: Path) -> tuple[int, int]:
    """Return the line and the column of a part's key or dash."""
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
    # A line break in a name would end the comment, and the rest of the name would become part of the YAML.
    printable = "".join(char if char.isprintable() else " " for char in paragraph)
    text = " ".join(printable.split())
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
