"""What is claimed with figures, as experiments that anyone can run again: cells, and a page."""
