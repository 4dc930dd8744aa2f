"""Connects the workers of Ray's ``JaxTrainer`` to one distributed JAX system.

Ray's own back end does not connect workers on CPUs. On GPUs, it makes every worker use the first devices of its
node, so two workers on one node would use the same device.
"""

import socket
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.backend import Backend
from ray.train.v2.jax import JaxConfig


@dataclass
class ConnectedJaxConfig(JaxConfig):  # type: ignore[misc]  # Ray's classes are untyped
    """A config that connects several workers before their loops run."""

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend that Ray calls after the workers have started."""
        return _ConnectingBackend


class _ConnectingBackend(Backend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: ConnectedJaxConfig) -> None:
        num_workers = len(worker_group)
        if num_workers == 1:
            return
        address = worker_group.execute_single(0, _free_address)
        # All calls are sent before any result is read, because ``initialize`` waits until all processes have connected.
        connected = [
            worker_group.execute_single_async(rank, _connect, address, num_workers, rank) for rank in range(num_workers)
        ]
        ray.get(connected)  # ``jax.distributed.initialize`` has its own timeout


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("", 0))
        # Another process may take the port before JAX binds it. Ray's own ``get_address_and_port`` has the same gap.
        return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"


def _connect(address: str, num_workers: int, rank: int) -> None:
    import jax

    jax.distributed.initialize(address, num_workers, rank)
