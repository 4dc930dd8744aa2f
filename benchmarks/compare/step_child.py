"""A script that times equal steps on request: for each line of its input, that many steps, in seconds together.

It imports almost nothing, so that the process contains nothing but the step.
"""

import hashlib
import sys
import time

_BLOCK_BYTES = 64
"""SHA-256 hashes this much at once, so the work grows evenly with the number of blocks."""
_DATA = memoryview(bytes(1 << 16))


def step(num_blocks: int) -> bytes:
    """Return the hash of ``num_blocks`` blocks.

    A loop in Python would not do: its speed depends on where a process has its memory, so fresh processes differ by
    several percent. Hashing differs by a few thousandths.
    """
    hashed = hashlib.sha256()
    full, rest = divmod(num_blocks * _BLOCK_BYTES, len(_DATA))
    for _ in range(full):
        hashed.update(_DATA)
    hashed.update(_DATA[:rest])
    return hashed.digest()


def time_steps(num_blocks: int, num_steps: int) -> float:
    """Return how many seconds ``num_steps`` steps take together."""
    start = time.perf_counter()
    for _ in range(num_steps):
        step(num_blocks)
    return time.perf_counter() - start


if __name__ == "__main__":
    for line in sys.stdin:
        print(time_steps(int(sys.argv[1]), int(line)), flush=True)
