"""Holds a process to its share of GPU memory: in each framework's own terms, and by what the machine offers."""
