"""A fresh process that times equal steps when it is asked to. It is run as a script, with nothing but Python in it.

For each line of its input it times so many steps and prints how many seconds they took together.
"""

import hashlib
import sys
import time

_BLOCK_BYTES = 64
"""What SHA-256 takes at once, so that work grows evenly with their number."""
_DATA = memoryview(bytes(1 << 16))


def step(num_blocks: int) -> bytes:
    """Return the hash of so many blocks.

    It is no loop in Python, or another one over few bytes: how long these take depends on where a process has its
    memory, so that fresh processes differ by several percent. Those that hash differ by a few thousandths.
    """
    hashed = hashlib.sha256()
    full, rest = divmod(num_blocks * _BLOCK_BYTES, len(_DATA))
    for _ in range(full):
        hashed.update(_DATA)
    hashed.update(_DATA[:rest])
    return hashed.digest()


def time_steps(num_blocks: int, num_steps: int) -> float:
    """Return how long so many steps take together, in seconds."""
    start = time.perf_counter()
    for _ in range(num_steps):
        step(num_blocks)
    return time.perf_counter() - start


def main() -> None:
    """Take orders until the input ends."""
    num_blocks = int(sys.argv[1])
    for line in sys.stdin:
        print(time_steps(num_blocks, int(line)), flush=True)


if __name__ == "__main__":
    main()
