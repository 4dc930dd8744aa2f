"""Fields of records that only earlier versions wrote."""

from collections.abc import Iterable
from typing import Any, Final

from pydantic import model_validator

OF_SETTINGS: Final = ("max_steps", "max_seconds")
OF_ENVIRONMENT: Final = ("commit", "has_changes")
OF_PROCESS_RUN: Final = ("start_up_s", "prepare_s", "energy_j")
OF_NOISE_READING: Final = ("cpu_mhz",)


def ignoring(names: Iterable[str]) -> Any:
    """Return a validator that ignores these obsolete fields, so that files of earlier versions can still be read."""

    def without_them(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if key not in names}
        return data

    return model_validator(mode="before")(without_them)
