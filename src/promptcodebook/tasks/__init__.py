"""What a run learns to do: ready-made tasks, rewards, and the user's own task."""
