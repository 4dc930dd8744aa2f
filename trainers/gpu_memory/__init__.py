"""Limits the GPU memory of each framework to the GPU fraction of the process, and measures the memory use."""
