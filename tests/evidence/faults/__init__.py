"""Injects faults into runs of trials."""
