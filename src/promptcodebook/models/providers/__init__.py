"""Models behind a provider's own library: Anthropic, and what litellm reaches."""
