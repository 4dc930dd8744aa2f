"""A fresh process that times equal steps when it is asked to. It is run as a script, with nothing but Python in it.

For each line of its input it times so many steps and prints how many seconds they took together.
"""

import sys
import time


def step(turns: int) -> int:
    """Do a fixed piece of work in Python."""
    total = 0
    for number in range(turns):
        total += number & 7
    return total


def time_steps(turns: int, num_steps: int) -> float:
    """Return how long so many steps take together, in seconds."""
    start = time.perf_counter()
    for _ in range(num_steps):
        step(turns)
    return time.perf_counter() - start


def main() -> None:
    """Take orders until the input ends."""
    turns = int(sys.argv[1])
    for line in sys.stdin:
        print(time_steps(turns, int(line)), flush=True)


if __name__ == "__main__":
    main()
