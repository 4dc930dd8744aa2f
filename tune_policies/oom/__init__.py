"""Tells whether an error means that memory ran out: which memory, whose, and how much was asked for.

By the names of types and by texts alone: no framework and no Ray is imported, so the answer is the same in a
driver that has none of them. ``chain`` finds the errors inside an error, ``named_errors`` those in a text, ``forms``
knows what each framework raises, ``amounts`` reads the numbers.
"""

from tune_policies.oom.classify import classify_oom, classify_oom_text
from tune_policies.oom.out_of_memory import OutOfMemory

__all__ = ["OutOfMemory", "classify_oom", "classify_oom_text"]
