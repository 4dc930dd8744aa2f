"""Detects out-of-memory errors, their kind of memory and requested size, and whether other processes were the cause.

The package compares only messages and the names of types. It does not import frameworks or Ray, so the result does not
depend on the installed packages. ``classify`` finds the errors inside an error or a string, and ``signatures``
recognizes the out-of-memory errors of each framework.
"""

from tune_policies.oom.classify import classify_oom, classify_oom_text
from tune_policies.oom.signatures import OutOfMemory

__all__ = ["OutOfMemory", "classify_oom", "classify_oom_text"]
