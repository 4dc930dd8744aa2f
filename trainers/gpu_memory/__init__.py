"""Limits the GPU memory of each framework in a process to the process's GPU fraction, and measures its use."""
