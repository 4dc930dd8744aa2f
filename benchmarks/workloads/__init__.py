"""The built-in workloads, and how to find them."""
