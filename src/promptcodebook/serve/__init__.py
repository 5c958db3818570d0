"""The server side of the chat-completions wire: `completions` reads and writes its bodies, `server`
puts one Backend behind them, `simulated` is the first Backend."""
