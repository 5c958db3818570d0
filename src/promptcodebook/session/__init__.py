"""The composition root: configuration -> objects; runs the loop, stores each step."""
