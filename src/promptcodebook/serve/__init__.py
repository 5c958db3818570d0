"""The server side of the chat-completions wire: `wire` the bodies, `server` one Backend behind
them, `simulated` the first Backend."""
