"""Limits a process to its fraction of GPU memory, framework by framework, and counts the memory that it uses."""
