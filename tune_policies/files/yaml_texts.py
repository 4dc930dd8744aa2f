"""Writes strings in YAML so that they are read as strings again.

PyYAML writes ``1e-3`` without quotes, because it does not read it as a number. Kubernetes and
:mod:`tune_policies.files.yaml_documents` do.
"""

import yaml

from tune_policies.files.yaml_documents import read_scalar


class TextDumper(yaml.SafeDumper):
    """Writes plain data, with quotes around all strings that would be read as another type."""


def _represent_text(dumper: yaml.SafeDumper, data: str) -> yaml.ScalarNode:
    style = None
    if _is_another_type(data):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)


def _is_another_type(text: str) -> bool:
    try:
        return not isinstance(read_scalar(text, None, (True, False)), str)
    except ValueError:
        return True


TextDumper.add_representer(str, _represent_text)
