"""The built-in workloads, and functions that find workloads by name."""
