"""What a process has used of GPU memory, and what outlives it."""
