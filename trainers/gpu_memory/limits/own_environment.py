"""The environment variables that this process writes to limit itself, and what the user had in them before.

A process may serve several trials: what was written for the last one must not be taken for the user's own wish.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class OwnEnvironment:
    """This process's environment, of which some variables were written here."""

    _written: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    """What was there before, and what was written over it, by variable."""

    def of_user(self) -> dict[str, str]:
        """Return the environment as the user wants it; a variable that was changed since it was written is theirs."""
        environ = dict(os.environ)
        for name, (before, written) in self._written.items():
            if environ.get(name) == written:
                del environ[name]
                environ |= {} if before is None else {name: before}
        return environ

    def write(self, variables: Mapping[str, str]) -> None:
        """Write variables into this process's environment."""
        before = self.of_user()
        for name, value in variables.items():
            self._written[name] = (before.get(name), value)
        os.environ.update(variables)

    def is_as_written(self, name: str) -> bool:
        """Return whether a variable still has what was written here."""
        return name in self._written and os.environ.get(name) == self._written[name][1]


PROCESS_ENVIRONMENT = OwnEnvironment()
"""The one environment that a process has."""
