"""The workloads that come with the benchmarks."""
