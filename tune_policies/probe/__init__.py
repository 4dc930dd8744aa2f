"""Reads the state of a cluster from the GCS, its nodes through tasks, and its configuration from files."""
