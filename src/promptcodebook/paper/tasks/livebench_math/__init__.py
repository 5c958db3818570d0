"""LiveBench's mathematics."""
