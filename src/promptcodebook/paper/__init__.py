"""What measures the paper: its benchmarks, its rivals and its experiments."""
