"""The benchmarks."""
