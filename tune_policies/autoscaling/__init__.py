"""Requests nodes from an autoscaler, and waits until a plan can run."""
