"""Tells whether an error means that memory ran out: which memory, whose, and how much was asked for.

It goes by the names of types and by texts alone. It imports no framework and no Ray, so the answer is the same in a
driver that has none of them. ``error_chain`` finds the errors inside an error or a text, ``signatures`` knows what each
framework raises, ``amounts`` reads the numbers, and ``classify`` gives the answer.
"""

from tune_policies.oom.classify import classify_oom, classify_oom_text
from tune_policies.oom.out_of_memory import OutOfMemory

__all__ = ["OutOfMemory", "classify_oom", "classify_oom_text"]
