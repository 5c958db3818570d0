"""A shop's agent on smolagents. Its own instructions have the marker that training fills."""

import json
import os
import sys

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool


@tool
def stock(item: str) -> str:
    """How many of an item the shop has.

    Args:
        item: What is asked about.
    """
    return "none" if item == "lamp" else "12"


if __name__ == "__main__":
    row = json.loads(sys.stdin.readline())
    model = OpenAIModel("gpt-4o", api_base=os.environ["OPENAI_BASE_URL"])
    agent = ToolCallingAgent(
        tools=[stock], model=model, instructions="{{pco}}", verbosity_level=LogLevel.OFF
    )
    print(agent.run(row["input"]))
