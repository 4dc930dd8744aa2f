"""Designs the cheapest cluster for trials, forecasts how many trials run on a cluster, and checks cluster files.

This package needs neither Ray nor Kubernetes. As in :mod:`tune_policies`, names are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType, Toleration
    from tune_policies.kuberay.design.cluster_spec import ClusterSpec, WorkerGroup
    from tune_policies.kuberay.design.design_cluster import ClusterDesign, design_cluster
    from tune_policies.kuberay.design.forecast import TrialForecast, forecast_trials
    from tune_policies.kuberay.lint.linting import lint_file
    from tune_policies.kuberay.lint.rule import Finding
    from tune_policies.kuberay.reading.load_cluster import load_capacity, load_catalog, load_cluster
    from tune_policies.kuberay.writing import write_cluster
    from tune_policies.kuberay.writing.write_options import WriteOptions

__all__ = [
    "ClusterDesign",
    "ClusterSpec",
    "Finding",
    "NodeCatalog",
    "NodeType",
    "Toleration",
    "TrialForecast",
    "WorkerGroup",
    "WriteOptions",
    "design_cluster",
    "forecast_trials",
    "lint_file",
    "load_capacity",
    "load_catalog",
    "load_cluster",
    "write_cluster",
]

_MODULES: Final = {
    **dict.fromkeys(("NodeCatalog", "NodeType", "Toleration"), "design.catalog_file"),
    **dict.fromkeys(("ClusterSpec", "WorkerGroup"), "design.cluster_spec"),
    **dict.fromkeys(("ClusterDesign", "design_cluster"), "design.design_cluster"),
    **dict.fromkeys(("TrialForecast", "forecast_trials"), "design.forecast"),
    "lint_file": "lint.linting",
    "Finding": "lint.rule",
    **dict.fromkeys(("load_capacity", "load_catalog", "load_cluster"), "reading.load_cluster"),
    "write_cluster": "writing",
    "WriteOptions": "writing.write_options",
}
"""The module that defines each public name."""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    if not name.startswith("_"):
        new = import_module("tune_policies.renamed_names").new_name("tune_policies.kuberay", name)
        if new is not None:
            return __getattr__(new)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
