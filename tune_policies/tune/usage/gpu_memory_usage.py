"""What one process used of its share of GPU memory."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from tune_policies.values.resources import Bytes, Count, GpuAmount, UsedBytes
from tune_policies.values.sanitize import Redacted
from tune_policies.values.value import Value

GPU_MEMORY_KEY: Final = "gpu_memory"
"""The one key under which a trial's result says what it used."""

USAGE_NOTE: Final = f"{GPU_MEMORY_KEY}: "
"""How the line of an error begins that says what its trial had used, in JSON."""

WORKER_FILES: Final = f"{GPU_MEMORY_KEY}-*.json"
"""The files in the folder of a run or a trial that have each a process's record."""

ASSUMED: Final = "the reserved peak and an overhead that is only assumed"
"""What ``share_kept`` rests on where the driver does not count by process, and nobody measured the overhead."""


def _from_lines(value: object) -> object:
    return tuple(value.splitlines()) if isinstance(value, str) else value


def _from_named_lines(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = [line.partition(": ") for line in value.splitlines()]
    return {name: int(text) if text.isdecimal() else text for name, _, text in parts}


_Texts = Annotated[tuple[str, ...], BeforeValidator(_from_lines)]
"""Texts; in a result they are the lines of one."""


class GpuMemoryUsage(Value):
    """What a process used of its share of GPU memory, all its devices together.

    Attributes:
        pid: The number of the process.
        gpus: GPUs that Ray gave the process: a share of one, or whole ones; ``None``: not known.
        device_bytes: The memory of one of its devices; ``None``: not known.
        share_bytes: What the process may use in all; ``None``: whole GPUs, or a share whose size is not known.
        limit_bytes: What its frameworks' allocators were limited to, by framework.
        peak_allocated_bytes: The most that tensors took; ``None``: no framework can tell.
        peak_reserved_bytes: The most that allocators held; ``None``: no framework can tell.
        process_bytes: What the process holds on the device by the driver's own count, all included; ``None``: the
            driver cannot say.
        overhead_bytes: What the frameworks use outside their allocators; ``None``: not known.
        num_ooms: How often an allocation was refused for want of memory.
        share_kept: Whether the process stayed within its share; ``None``: not known.
        left_over_bytes: What an earlier trial in this process had left behind and did not release.
        isolation: What holds the process to its share, such as ``"framework"`` or ``"mps"``; ``None``: nothing does.
        not_enforceable: Frameworks in use that know no limit.
        warnings: What voids a limit, and was insisted on; and what else a reader should know.
        sources: How each figure was measured, by its field.
    """

    pid: Count | None = None
    gpus: GpuAmount | None = None
    device_bytes: Bytes | None = None
    share_bytes: Bytes | None = None
    limit_bytes: Annotated[dict[str, Bytes], BeforeValidator(_from_named_lines)] = Field(default_factory=dict)
    peak_allocated_bytes: UsedBytes | None = None
    peak_reserved_bytes: UsedBytes | None = None
    process_bytes: UsedBytes | None = None
    overhead_bytes: UsedBytes | None = None
    num_ooms: Count = 0
    share_kept: bool | None = None
    left_over_bytes: UsedBytes = 0
    isolation: str | None = None
    not_enforceable: _Texts = ()
    warnings: Annotated[tuple[Redacted, ...], BeforeValidator(_from_lines)] = ()
    sources: Annotated[dict[str, str], BeforeValidator(_from_named_lines)] = Field(default_factory=dict)

    def to_result(self) -> dict[str, Any]:
        """Return the record as a part of a result: always the same keys, with a number or a text each.

        TensorBoard's logger wants to draw each list, and warns where it holds texts. ``progress.csv`` has a column for
        each key of a mapping, and has those of the first result, also where a trial goes on with another share.
        """
        lines = {
            "limit_bytes": [f"{name}: {amount}" for name, amount in self.limit_bytes.items()],
            "not_enforceable": self.not_enforceable,
            "warnings": self.warnings,
            "sources": [f"{name}: {text}" for name, text in self.sources.items()],
        }
        texts = {name: "\n".join(" ".join(line.splitlines()) for line in each) for name, each in lines.items()}
        return {**self.model_dump(mode="json"), **texts}


def rests_on_assumption(usage: GpuMemoryUsage) -> bool:
    """Return whether it is only likely that the share was kept."""
    return usage.sources.get("share_kept") == ASSUMED


def worker_file(rank: int, pid: int) -> str:
    """Return the name of a process's file; a worker that was started again has another process."""
    return WORKER_FILES.replace("*", f"{rank}-{pid}")
