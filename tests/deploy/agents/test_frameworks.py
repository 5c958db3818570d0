"""The agents of examples/agents, by their real packages, against a model that calls their tool."""

import json
import os
import shutil
from pathlib import Path

import pytest

import promptcodebook as pco
from promptcodebook.calls import Message, Reply, Request, Usage
from promptcodebook.method.executor import BoundChat
from promptcodebook.types import Prompt

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-agents" / "bin" / "python"
NODE = ROOT / "requirements" / "npm" / "node_modules"
PRESENT = "You work for a shop. Answer in one word."
pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(
        not list(PYTHON.parents[1].glob("lib/*/site-packages/pydantic_ai")),
        reason="make test-local installs the frameworks",
    ),
]


class Clerk:
    """A model by rules: it asks for the stock of a lamp, and then says what it heard."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def __call__(self, request: Request) -> Reply:
        self.asked.append(request)
        names = [tool["function"]["name"] for tool in request.sampling.extra.get("tools", ())]  # type: ignore[attr-defined]
        heard = [m for m in request.messages if self._is_answer(m)]
        if heard and "final_answer" in names:
            return self._call("final_answer", {"answer": "none"})
        if heard:
            return Reply("none", usage=Usage(1, 30, 1))
        handoff = next((name for name in names if name.startswith("transfer_to")), None)
        if handoff:
            return self._call(handoff, {})
        return self._call("stock", {"item": "lamp"})

    def _is_answer(self, message: Message) -> bool:
        text = message.content.lower()
        return message.role in ("tool", "user") and "none" in text

    def _call(self, name: str, arguments: dict[str, str]) -> Reply:
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{len(self.asked)}", "type": "function", "function": function}
        return Reply("", usage=Usage(1, 20, 5), tool_calls=(call,))


@pytest.mark.parametrize(("file", "turns"), [
    ("pydantic_ai_agent.py", 2),
    ("openai_agents_agent.py", 3),
    ("langgraph_agent.py", 2),
    ("smolagents_agent.py", 2),
    ("mcp_agent.py", 2),
    ("agent.mjs", 2),
])  # fmt: skip
async def test_an_agent_of_a_framework_is_trained_as_it_is(
    file: str, turns: int, tmp_path: Path
) -> None:
    script = ROOT / "examples" / "agents" / file
    assert "promptcodebook" not in script.read_text("utf-8").replace(
        "nothing of promptcodebook", ""
    )
    command = [str(PYTHON), str(script)]
    if file.endswith(".mjs"):
        node = shutil.which("node")
        if node is None or not (NODE / "openai").exists():
            pytest.skip("no node, or no openai for it")
        (tmp_path / "node_modules").symlink_to(NODE)
        command = [node, shutil.copy(script, tmp_path)]
    model, prompt = Clerk(), Prompt("Say it in Greek.")
    chat = BoundChat(model, lambda purpose: 0, prompt=prompt)
    agent = pco.Agent(command=command, present=PRESENT, seconds=120)
    output = await agent(prompt, pco.Example("e1", "Is there a lamp?", "none"), chat)
    assert output.text == "none" and len(output.trace) == turns == len(model.asked)
    assert chat.usage.calls == turns and chat.usage.tokens == sum(
        25 if reply.output.startswith(("stock(", "transfer", "final")) else 31
        for reply in output.trace
    )
    first = model.asked[0].messages[0]
    assert first.role == "system" and "Say it in Greek." in first.content
    assert PRESENT not in first.content and "{{pco}}" not in first.content
    called = [stage.output for stage in output.trace]
    assert any(call.startswith("stock(") and "lamp" in call for call in called)
    assert os.environ.get("OPENAI_BASE_URL") is None
