"""Runs a benchmark command: ``python -m tune_policies.benchmarks COMMAND``."""

from .cli import app

app()
