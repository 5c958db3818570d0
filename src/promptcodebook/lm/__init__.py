"""How models are called: one Protocol, small wrappers that compose, an endpoint client."""
