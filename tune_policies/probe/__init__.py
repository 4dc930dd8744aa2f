"""Reads a cluster: its state from the GCS, its nodes with tasks, and its configuration from files."""
