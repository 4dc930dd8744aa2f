"""What the commands may be asked for, without Ray, so that the command line starts at once."""

from enum import StrEnum
from typing import Final

DEVICE_TYPES: Final = ("T4", "L4", "A100", "H100", "H200", "V100", "P100", "P4", "K80", "L40S", "A10G", "B200")
"""Those of the autoscaling clusters, one for each node to start: one that is there already would not be waited for."""

MOST_REPETITIONS: Final = len(DEVICE_TYPES) - 1


class Scenario(StrEnum):
    """What a cluster answers to a wish for a GPU: an autoscaling one, or one whose GPUs are there already."""

    NO_AUTOSCALER = "no-autoscaler"
    NO_SUCH_TYPE = "no-such-type"
    LAUNCH_FAILS = "launch-fails"
    LAUNCH_HANGS = "launch-hangs"
    NODE_STARTS = "node-starts"
    GPU_FREE = "gpu-free"
    GPU_BUSY = "gpu-busy"
    GPU_ABSENT = "gpu-absent"


class Arm(StrEnum):
    """How trials get their resources."""

    BY_HAND = "by-hand"
    PLAN = "plan"
    CALLBACK = "plan-and-callback"


class PoolArm(StrEnum):
    """Which slots of a pool of several kinds trials take."""

    POLICY = "speeds-known"
    LEARNS = "speeds-not-known"
    NAIVE = "all-slots"
    GPU_ONLY = "gpu-only"

    @property
    def label(self) -> str:
        """What a table says of it."""
        return {
            PoolArm.POLICY: "PolicyScheduler, speeds known",
            PoolArm.LEARNS: "PolicyScheduler, speeds not known",
            PoolArm.NAIVE: "every slot whenever it is free",
            PoolArm.GPU_ONLY: "GPU slots only",
        }[self]
