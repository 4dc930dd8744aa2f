"""Tests for authors of policies: ``check_policy`` tests a policy on clusters of all kinds.

Nothing here is needed to plan or to train, and nothing else of the package imports it.
"""

from tune_policies.testing.check_policy import PolicyCheckError, Promise, check_policy

__all__ = ["PolicyCheckError", "Promise", "check_policy"]
