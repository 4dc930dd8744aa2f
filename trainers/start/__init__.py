"""Starts runs of Tune under a policy."""
