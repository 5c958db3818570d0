"""HotpotQA: questions over two pages of an encyclopedia."""
