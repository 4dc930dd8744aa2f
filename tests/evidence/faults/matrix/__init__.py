"""Faults of workers, nodes, trials and programs, under each way to run trials, on a real Ray."""
