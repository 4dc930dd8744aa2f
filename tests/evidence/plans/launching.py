"""A node provider whose launches work, fail or never end, as files say at that moment.

A node that it starts is a real raylet on this machine, with logical GPUs; Ray's autoscaler drives it like any cloud.
"""

import time
from pathlib import Path
from typing import Any, Final

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

LAUNCHED: Final = ".launched"
"""The file of a node type with this ending has the time at which its last launch began."""


class LaunchingProvider(FakeMultiNodeProvider):  # type: ignore[misc] # Ray's class is Any here
    """Ray's fake provider, with launches that go as the files in the folder ``modes`` of its configuration say.

    A file has the name of a node type. ``start``, or no file: they work; ``less``: the node comes with one CPU and
    nothing else; ``fail``: they fail at once; ``hang``: they do not end.
    """

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: dict[str, float], labels: Any
    ) -> None:
        """Launch ``count`` nodes."""
        file = Path(self.provider_config["modes"]) / tags[TAG_RAY_USER_NODE_TYPE]
        file.with_name(f"{file.name}{LAUNCHED}").touch()
        while (mode := file.read_text() if file.exists() else "start") == "hang":
            time.sleep(0.2)
        if mode == "fail":
            raise NodeLaunchException("OutOfStock", "no such machine is left", None)
        # Ray's fake takes no host memory: its nodes have as much as the machine.
        promised = {"CPU": 1} if mode == "less" else {name: resources[name] for name in resources if name != "memory"}
        super().create_node_with_resources_and_labels(node_config, tags, count, promised, labels)
