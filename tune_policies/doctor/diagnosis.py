"""From the facts of all nodes to what is wrong. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from tune_policies.doctor.facts import NodeFacts
from tune_policies.doctor.findings import Finding, Severity, merge
from tune_policies.doctor.node_checks import NODE_CHECKS
from tune_policies.names import shorten_names

_MAY_DIFFER: Final = frozenset({"numpy", "NVIDIA driver"})
"""What usually works together in different versions, so that a difference is only worth a note."""


def diagnose(nodes: Iterable[NodeFacts]) -> tuple[Finding, ...]:
    """Return what is wrong on these nodes, the problems first; equal findings of many nodes are one."""
    nodes = tuple(nodes)
    findings = [finding for check in NODE_CHECKS for node in nodes for finding in check(node)]
    return merge([*findings, *_differing_versions(nodes), *_no_gpus(nodes)])


def _differing_versions(nodes: tuple[NodeFacts, ...]) -> Iterator[Finding]:
    read = [node for node in nodes if node.failure is None]
    versions = {node.name: node.versions | _driver(node) for node in read}
    for package in sorted({name for found in versions.values() for name in found}):
        where: dict[str, list[str]] = defaultdict(list)
        for node, found in versions.items():
            if package in found or package != "NVIDIA driver":  # a node without GPUs needs no driver
                where[found.get(package, "not installed")].append(node)
        if len(where) < 2:
            continue
        versions_with_nodes = _most_common_first(where)
        listed = "; ".join(f"{version} on {shorten_names(names)}" for version, names in versions_with_nodes)
        yield Finding(
            severity=Severity.NOTE if package in _MAY_DIFFER else Severity.PROBLEM,
            what=f"{package} differs between nodes: {listed}",
            way_out="install one version everywhere, best by one image for all nodes",
            nodes=tuple(name for _, names in versions_with_nodes[1:] for name in names),
        )


def _most_common_first(where: dict[str, list[str]]) -> list[tuple[str, list[str]]]:
    return sorted(((version, sorted(names)) for version, names in where.items()), key=lambda it: (-len(it[1]), it[0]))


def _driver(node: NodeFacts) -> dict[str, str]:
    return {"NVIDIA driver": node.driver_version} if node.driver_version else {}


def _no_gpus(nodes: tuple[NodeFacts, ...]) -> Iterator[Finding]:
    if nodes and not any(node.has_gpus or node.failure or node.num_nvidia_on_pci for node in nodes):
        yield Finding(
            severity=Severity.NOTE,
            what="no GPUs here: trials run on CPUs",
            way_out="nothing to do, unless there should be some",
        )
