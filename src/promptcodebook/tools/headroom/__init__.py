"""What there is to win before anything is trained: `pco headroom`."""
