"""What is ours beyond the paper: routes learned from outcomes, the trial of θ, maintenance."""
