"""What the machines of a cluster YAML have, where the file leaves that to Ray.

For AWS, Ray looks the instance type up as the cluster starts, and what ``resources`` leaves out is what it finds
(``fillout_available_node_types_resources`` of ``ray.autoscaler._private.aws.node_provider``). Here the catalogue stands
for AWS. For the other providers nothing is looked up.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.kuberay.design.catalog import NodeCatalog, NodeType
from tune_policies.kuberay.manifests.cluster_yaml import FILLS_RESOURCES, LOCAL, YamlNodeType

_KEY: Final = "InstanceType"

_FOR_OBJECTS: Final = 0.3
"""The part of a worker's memory that Ray keeps for its object store (``DEFAULT_OBJECT_STORE_MEMORY_PROPORTION``)."""

_WITH_DEVICES: Final = re.compile(r"(g|gr|p|dl|trn|inf|vt)\d")
"""How the names of AWS' instance types with accelerators begin."""


class Machines(NamedTuple):
    """The machines of one cluster.

    Attributes:
        provider: Where they come from; empty: the file does not say.
        catalog: What is known of them; ``None``: nothing.
    """

    provider: str
    catalog: NodeCatalog | None = None

    def amounts(self, node_type: YamlNodeType, *, is_head: bool = False) -> dict[str, int]:
        """Return the amounts by Ray's resource that Ray counts on a node, as far as they are known.

        Args:
            node_type: What the file says of it.
            is_head: Of the head's memory Ray looks nothing up.
        """
        machine = self._machine(node_type)
        looked_up = {} if machine is None else _looked_up(machine, is_head=is_head)
        return {**looked_up, **(node_type.resources or {})}

    def why_unknown(self, name: str, node_type: YamlNodeType) -> str | None:
        """Return why a node type's amounts are not known, and what to write; ``None``: they are."""
        amounts = self.amounts(node_type)
        if "CPU" in amounts or (amounts and self.provider != FILLS_RESOURCES):
            return None
        return f"the node type {name!r} has no {'CPU in its ' if amounts else ''}{self._why(node_type)}"

    def assumptions(self, node_types: Mapping[str, YamlNodeType]) -> Iterator[str]:
        """Yield what is looked up beside what the file says and is not known here, a sentence for each node type."""
        for name, each in node_types.items():
            instance = each.node_config.get(_KEY)
            is_open = self.provider == FILLS_RESOURCES and "GPU" not in (each.resources or {})
            if is_open and isinstance(instance, str) and _WITH_DEVICES.match(instance) and self._machine(each) is None:
                yield (
                    f"AWS adds the devices of {instance} to the resources of {name!r}, which are counted without: give "
                    "--nodes a catalogue that has it, or write them under resources"
                )

    def _machine(self, node_type: YamlNodeType) -> NodeType | None:
        """Return the catalogue's row of the instance type, by its ``node_config`` or by its name."""
        instance = node_type.node_config.get(_KEY)
        if self.provider != FILLS_RESOURCES or self.catalog is None or not isinstance(instance, str):
            return None
        rows = {each.name: each for each in self.catalog.node_types}
        configured = (each for each in self.catalog.node_types if each.node_config.get(_KEY) == instance)
        return next(configured, rows.get(instance.replace(".", "-")))

    def _why(self, node_type: YamlNodeType) -> str:
        if self.provider == LOCAL:
            return (
                "resources, which Ray reads from each machine as it starts: save what they are by `probe --json` "
                "there, and plan by --capacity"
            )
        if self.provider != FILLS_RESOURCES:
            return "resources: write what a node will have, which Ray finds out for AWS alone before a node starts"
        instance = node_type.node_config.get(_KEY)
        if not isinstance(instance, str):
            return f"resources, and its node_config no {_KEY} by which AWS could fill them in: write resources"
        unknown = "" if self.catalog is None else ", which the catalogue does not have"
        return (
            f"resources in the file: AWS fills them in by the instance type {instance}{unknown}; give --nodes a "
            "catalogue that has it, or write resources"
        )


def _looked_up(machine: NodeType, *, is_head: bool) -> dict[str, int]:
    amounts = {"CPU": machine.cpus, **{name: int(amount) for name, amount in machine.devices.items()}}
    if machine.accelerator_type is not None:
        amounts[ACCELERATOR_TYPE_PREFIX + machine.accelerator_type] = 1
    return amounts if is_head else {**amounts, "memory": int(machine.memory_bytes * (1 - _FOR_OBJECTS))}
