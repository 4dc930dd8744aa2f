"""Runs workloads on devices in fresh processes, in random turns."""
