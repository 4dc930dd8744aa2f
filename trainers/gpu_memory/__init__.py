"""Limits the GPU memory of each framework to the GPU fraction of the process, and reads how much it uses."""
