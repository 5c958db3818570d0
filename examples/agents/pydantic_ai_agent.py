"""A shop's agent on pydantic-ai, with one tool. It knows nothing of promptcodebook."""

import json
import sys

from pydantic_ai import Agent

agent = Agent("openai-chat:gpt-4o", instructions="You work for a shop. Answer in one word.")


@agent.tool_plain
def stock(item: str) -> str:
    """How many of an item the shop has."""
    return "none" if item == "lamp" else "12"


if __name__ == "__main__":
    row = json.loads(sys.stdin.readline())
    print(agent.run_sync(row["input"]).output)
