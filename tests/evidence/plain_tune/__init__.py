"""Runs small random programs with plain Ray Tune and under a policy, and compares both runs."""
