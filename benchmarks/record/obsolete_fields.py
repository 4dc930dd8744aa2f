"""Fields of records that only earlier versions wrote."""

from typing import Any

from pydantic import model_validator


def ignoring_fields(*names: str) -> Any:
    """Return a validator that ignores these obsolete fields, so that files of earlier versions can still be read."""

    def without_them(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if key not in names}
        return data

    return model_validator(mode="before")(without_them)
