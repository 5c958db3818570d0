"""What `pco headroom` says, where the answer is known."""
