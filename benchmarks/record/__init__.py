"""The record of a run of the benchmarks: values, and their file."""
