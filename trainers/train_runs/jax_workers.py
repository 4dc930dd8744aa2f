"""Connects the JAX workers of a Train run, on whatever devices Ray gave each of them.

Ray's own back end leaves workers on CPUs apart. On GPUs it lets every worker see the first devices of its node, so that
two workers of a node compute on the same one.
"""

import socket
from dataclasses import dataclass
from typing import Any

import ray
from ray.train.backend import Backend
from ray.train.v2.jax import JaxConfig


@dataclass
class ConnectedJaxConfig(JaxConfig):  # type: ignore[misc]  # Ray's classes are untyped
    """Has several workers connected before their loops run, and leaves a single one alone."""

    @property
    def backend_cls(self) -> type[Backend]:
        """What Ray calls when the workers are there."""
        return _ConnectingBackend


class _ConnectingBackend(Backend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: ConnectedJaxConfig) -> None:
        num_workers = len(worker_group)
        if num_workers == 1:
            return
        address = worker_group.execute_single(0, _free_address)
        ray.get(  # which ends in any case: JAX waits for the others for a limited time
            [
                worker_group.execute_single_async(rank, _connect, address, num_workers, rank)
                for rank in range(num_workers)
            ]
        )


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"


def _connect(address: str, num_workers: int, rank: int) -> None:
    import jax

    jax.distributed.initialize(address, num_workers, rank)
