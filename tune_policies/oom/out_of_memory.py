"""What an error says about memory that ran out."""

from typing import Literal

from tune_policies.values.resources import Bytes
from tune_policies.values.value import Value


class OutOfMemory(Value):
    """What an error says about memory that ran out.

    Attributes:
        kind: ``"accelerator"``: memory of a GPU or its like; ``"host"``: of the machine; ``"none"``: the error means
            something else.
        framework: Who raised it: ``"torch"``, ``"tensorflow"``, ``"jax"``, ``"cupy"``, ``"ray"`` (its memory
            monitor) or ``"python"`` (NumPy too); ``None``: not known.
        requested_bytes: What was asked for; of a worker that Ray's memory monitor killed: what it used; ``None``: the
            error does not say.
        limit_bytes: The process's own limit; ``None``: the error names none.
        cause: ``"own_limit"``: the process reached its own limit; ``"neighbour"``: it was within it, and others had
            taken the rest of the device; ``None``: the error does not tell.
    """

    kind: Literal["accelerator", "host", "none"]
    framework: str | None = None
    requested_bytes: Bytes | None = None
    limit_bytes: Bytes | None = None
    cause: Literal["own_limit", "neighbour"] | None = None
