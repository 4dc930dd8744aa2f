"""From measurements to a decision: crossover, time, cost."""
