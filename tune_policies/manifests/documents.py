"""Reads YAML as plain data, with the line of each part, so that what is wrong with it can be shown where it stands.

A text is only parsed, never run: tags other than YAML's own are refused.
"""

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import yaml

Path = tuple[str | int, ...]
"""Where a part stands: keys and places from the top, as ``("spec", "workerGroupSpecs", 0, "groupName")``."""


class Document(NamedTuple):
    """One YAML document.

    Attributes:
        data: Mappings, lists and scalars.
        lines: By path the line, from 1, on which a part begins.
        source: The name of the file.
    """

    data: Any
    lines: Mapping[Path, int]
    source: str

    def line(self, path: Path) -> int:
        """Return the line of a part; of one that is missing, the line of what it should stand in."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_documents(text: str, source: str) -> tuple[Document, ...]:
    """Return the documents of a text, without those that are empty.

    Raises:
        yaml.YAMLError: It is not YAML.
    """
    loader = yaml.SafeLoader(text)
    try:
        found = []
        while loader.check_node():
            node = loader.get_node()
            lines: dict[Path, int] = {}
            _note_lines(loader, node, (), lines)
            found.append(Document(loader.construct_document(node), lines, source))
    finally:
        loader.dispose()
    return tuple(each for each in found if each.data is not None)


def _note_lines(loader: yaml.SafeLoader, node: yaml.Node, path: Path, lines: dict[Path, int]) -> None:
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            key: Hashable = loader.construct_object(key_node, deep=True)
            if isinstance(key, str | int):
                _note_lines(loader, value_node, (*path, key), lines)
                lines[(*path, key)] = key_node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for number, each in enumerate(node.value):
            _note_lines(loader, each, (*path, number), lines)
