"""Trials of Tune under a plan."""
