"""The package ``benchmarks`` under a name that no project of a user has."""

from tune_policies.siblings import load_sibling

load_sibling(__name__, known_by="plans/planning.py")
