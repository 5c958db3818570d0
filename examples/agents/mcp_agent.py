"""An agent whose tool is a server of the Model Context Protocol, in a process of its own."""

import asyncio
import json
import sys

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio
from mcp.server.mcpserver import MCPServer

set_tracing_disabled(True)
server = MCPServer("stock")


@server.tool()
def stock(item: str) -> str:
    """How many of an item the shop has."""
    return "none" if item == "lamp" else "12"


async def main(message: str) -> None:
    own = {"command": sys.executable, "args": [__file__, "serve"]}
    async with MCPServerStdio(own) as tools:
        prompt = "You work for a shop. Answer in one word."
        desk = Agent(name="desk", instructions=prompt, mcp_servers=[tools])
        print((await Runner.run(desk, message)).final_output)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        server.run()
    else:
        asyncio.run(main(json.loads(sys.stdin.readline())["input"]))
