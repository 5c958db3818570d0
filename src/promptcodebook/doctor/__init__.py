"""What works here and what does not, before anything is paid for."""
