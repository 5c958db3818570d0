"""Models behind a provider's own library: Anthropic, Gemini, and what litellm reaches."""
