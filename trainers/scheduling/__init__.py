"""Assigns the slots of a plan to the trials of a run."""
