"""What a run of the benchmarks leaves: values, and their file."""
