"""Tells whether an error means that memory ran out: which memory, whose, and how much was requested.

It goes by the names of types and by texts alone. It imports no framework and no Ray, so the answer is the same in a
driver that has none of them. ``classify`` finds the errors inside an error or a text, and ``signatures`` knows what
each framework raises.
"""

from tune_policies.oom.classify import classify_oom, classify_oom_text
from tune_policies.oom.signatures import OutOfMemory

__all__ = ["OutOfMemory", "classify_oom", "classify_oom_text"]
