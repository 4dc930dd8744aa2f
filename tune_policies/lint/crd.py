"""Checks manifests against KubeRay's official definitions, which the user gives."""

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from tune_policies.manifests.documents import Path


class CrdSet:
    """The definitions of some versions of KubeRay."""

    def problems(self, manifest: Mapping[str, Any]) -> list[tuple[Path, str]]:
        """Return where a manifest is not as it must be, and why; empty too where its kind is not defined here."""
        raise NotImplementedError


def load_crds(path: FilePath) -> CrdSet:
    """Read the definitions of a file or a folder, plain or gzipped.

    Raises:
        InvalidResourcesError: There is no such file, or no definition in it.
    """
    raise NotImplementedError
