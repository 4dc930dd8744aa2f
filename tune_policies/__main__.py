"""``python -m tune_policies`` is the command ``tune-policies``."""

from tune_policies.cli.main import main

main()
