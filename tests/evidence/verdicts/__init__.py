"""How often the verdicts of the benchmarks are right where the truth is known."""
