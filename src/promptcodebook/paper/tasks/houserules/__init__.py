"""Messages to a shop, and house rules that no message mentions: ours, for real models."""
