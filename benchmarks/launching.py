"""A node provider whose launches work, fail or never end, as a file says at that moment.

A node that it starts is a real raylet on this machine, with logical GPUs; Ray's autoscaler drives it like any cloud.
"""

import time
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException


class LaunchingProvider(FakeMultiNodeProvider):  # type: ignore[misc] # Ray's class is Any here
    """Ray's fake provider, with launches that go as the file ``mode_file`` of its configuration says.

    ``start``: they work; ``less``: the node comes with one CPU and nothing else; ``fail``: they fail at once;
    ``hang``: they do not end.
    """

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: int, resources: dict[str, float], labels: Any
    ) -> None:
        """Launch ``count`` nodes."""
        mode_file = Path(self.provider_config["mode_file"])
        while mode_file.read_text() == "hang":
            time.sleep(0.2)
        mode = mode_file.read_text()
        if mode == "fail":
            raise NodeLaunchException("OutOfStock", "no such machine is left", None)
        promised = {"CPU": 1} if mode == "less" else resources
        super().create_node_with_resources_and_labels(node_config, tags, count, promised, labels)
