"""The devices that Ray assigned to this process, and the GPU on which CUDA has started in it."""

import os
from typing import Final

from tune_policies.cluster.accelerators import FAMILIES
from tune_policies.values.errors import MemoryLimitError

from ..gpu_memory.mps import cuda_has_started

_DEVICE_VARIABLES: Final = (
    "CUDA_DEVICE_ORDER",
    *dict.fromkeys(family.visibility_variable for family in FAMILIES if family.visibility_variable),
)


class ProcessDevices:
    """The devices of this process."""

    def __init__(self) -> None:
        self._assigned_to = ""
        self._variables_of_ray: dict[str, str | None] = {}
        self._gpus_of_cuda: str | None = None

    def bind(self, assigned_to: str) -> None:
        """Set Ray's device variables as Ray set them, because an earlier trial may have changed them.

        Args:
            assigned_to: The ID of the actor or the task to which Ray assigned the devices.

        Raises:
            MemoryLimitError: An earlier task started CUDA in this process on a different GPU.
        """
        # Ray has just set the variables for this assignment. Later calls restore these values.
        if assigned_to != self._assigned_to:
            self._assigned_to = assigned_to
            self._variables_of_ray = {name: os.environ.get(name) for name in _DEVICE_VARIABLES}
        for name, value in self._variables_of_ray.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._check_gpus_of_cuda(os.environ.get("CUDA_VISIBLE_DEVICES", ""))

    def _check_gpus_of_cuda(self, gpus: str) -> None:
        """Raise a ``MemoryLimitError`` if CUDA has started in this process with visible GPUs other than ``gpus``."""
        # Until CUDA starts, it can still use the new devices.
        if self._gpus_of_cuda is None or not cuda_has_started():
            self._gpus_of_cuda = gpus
        elif gpus != self._gpus_of_cuda:
            raise MemoryLimitError(
                f"Ray assigned GPU {gpus} to this task, but an earlier task started CUDA in this process on GPU "
                f"{self._gpus_of_cuda}, and CUDA cannot switch to another GPU afterwards. Use "
                "remote_options(reuse='release'), or an actor"
            )
