"""A policy behind an OpenAI-compatible endpoint: `proxy.py` answers, `placement.py` places the
prompt, `versions.py` knows which policy is live, and `streaming.py` relays the model's answer. What
all our servers share is in `deploy/http`."""
