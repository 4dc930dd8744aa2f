"""Measures workloads on devices, in fresh processes that take turns in random order."""
