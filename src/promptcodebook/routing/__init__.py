"""What is ours beyond the paper: routes learned from outcomes, and rankings without a call."""
