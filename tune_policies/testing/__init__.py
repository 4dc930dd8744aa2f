"""Tools for authors of policies: ``check_policy`` tests a policy on many kinds of clusters.

Planning and training do not import this package.
"""

from tune_policies.testing.check_policy import PolicyCheckError, Promise, check_policy

__all__ = ["PolicyCheckError", "Promise", "check_policy"]
