"""Decides from measurements: crossover, time and cost."""
