"""What a served policy learns from its users: feedback, exploration, canaries, drift."""
