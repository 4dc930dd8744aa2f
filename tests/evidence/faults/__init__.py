"""Injects faults into runs of trials and checks that no trial is lost."""
