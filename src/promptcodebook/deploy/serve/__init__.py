"""A policy behind an OpenAI-compatible endpoint (`proxy.py`), and the server side of the
chat-completions wire that other models use too (`completions.py`, `server.py`)."""
