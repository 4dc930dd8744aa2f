"""Runs the command ``tune-policies`` as ``python -m tune_policies``."""

from tune_policies.cli.main import main

main()
