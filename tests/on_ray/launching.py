"""A node provider for Ray's autoscaler. Files determine whether its launches succeed, fail or hang.

For each node, the provider starts a real raylet with simulated GPUs on this machine.
"""

import time
from pathlib import Path

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

LAUNCHED = ".launched"
"""The suffix of the file that the provider touches at each launch. Each node type has its own file."""


class LaunchingProvider(FakeMultiNodeProvider):
    """Ray's fake provider with launches that depend on the files in the folder ``modes`` of its configuration.

    Each file is named after a node type and contains a mode. With ``start`` (the default), launches succeed. With
    ``less``, the node has only one CPU. With ``fail``, launches fail immediately. With ``hang``, launches never finish.
    """

    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):
        file = Path(self.provider_config["modes"]) / tags[TAG_RAY_USER_NODE_TYPE]
        file.with_name(f"{file.name}{LAUNCHED}").touch()
        while (mode := file.read_text() if file.exists() else "start") == "hang":
            time.sleep(0.2)
        if mode == "fail":
            raise NodeLaunchException("OutOfStock", "no such machine is left", None)
        # Ray's fake provider does not accept host memory. Its nodes declare the host memory of this machine.
        promised = {"CPU": 1} if mode == "less" else {name: resources[name] for name in resources if name != "memory"}
        super().create_node_with_resources_and_labels(node_config, tags, count, promised, labels)
