"""The JSON schema of a run set, as it ships with this package.

It is made from the values themselves. Where they have changed, ``python -m tune_policies.benchmarks.record.schema``
writes it anew.
"""

import json
from pathlib import Path
from typing import Any, Final

from tune_policies.files.writing import replace_file

from .run_set import RunSet

SCHEMA_FILE: Final = Path(__file__).with_name("run_set.schema.json")


def run_set_schema() -> dict[str, Any]:
    """Return the schema of what stands under ``tune_policies`` in a file of :mod:`.file`."""
    version = RunSet.model_fields["schema_version"].default
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tune-policies:run-set:{version}",
        **RunSet.model_json_schema(),
    }


def schema_text() -> str:
    """Return the content of the shipped file."""
    return json.dumps(run_set_schema(), indent=2) + "\n"


if __name__ == "__main__":
    replace_file(SCHEMA_FILE, schema_text())
