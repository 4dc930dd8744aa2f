"""Detects out-of-memory errors: which memory ran out, the requested size, and whether other processes were the cause.

The package compares only messages and the names of types. It does not import frameworks or Ray, so the result is the
same where they are not installed. ``classify`` finds the errors inside an error or a string, and ``signatures``
contains the errors of each framework.
"""

from tune_policies.oom.classify import classify_oom, classify_oom_text
from tune_policies.oom.signatures import OutOfMemory

__all__ = ["OutOfMemory", "classify_oom", "classify_oom_text"]
