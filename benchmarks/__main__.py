"""``python -m benchmarks COMMAND``."""

from .cli import main

main()
