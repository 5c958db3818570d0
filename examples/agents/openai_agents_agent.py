"""Two agents of openai-agents: one takes the message, and hands questions of stock to the other."""

import json
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # it would send traces to OpenAI


@function_tool
def stock(item: str) -> str:
    """How many of an item the shop has."""
    return "none" if item == "lamp" else "12"


clerk = Agent(name="clerk", instructions="Look up the stock. Answer in one word.", tools=[stock])
desk = Agent(name="desk", instructions="You work for a shop. Answer in one word.", handoffs=[clerk])

if __name__ == "__main__":
    row = json.loads(sys.stdin.readline())
    print(Runner.run_sync(desk, row["input"]).final_output)
