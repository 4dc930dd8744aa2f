"""Measures and reports the resource usage of trials and runs."""
