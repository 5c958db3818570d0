"""An agent's program and functions that run it."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import openai

import promptcodebook as pco
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import BoundChat
from promptcodebook.types import Prompt

SCRIPT = Path(__file__).parents[1] / "deploy" / "agents" / "agent.py"


SYSTEM = "You work for a shop. Answer in letters."


EXAMPLE = pco.Example("e1", "Where is my parcel?", "P", fields={"day": "Monday", "answer": "P"})


Act = Callable[[openai.AsyncOpenAI, pco.Example], Coroutine[Any, Any, str]]


def in_process(act: Act, **more: Any) -> pco.Agent:
    async def run(url: str, key: str, example: pco.Example) -> str:
        async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
            return await act(client, example)

    return pco.Agent(function=run, **more)


def turns(system: str, user: Any = "Where is my parcel?") -> list[Any]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def act(system: str, user: Any = "Where is my parcel?", **more: Any) -> Act:
    async def ask(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        made = await client.chat.completions.create(
            model="gpt-4o", messages=turns(system, user), **more
        )
        return made.choices[0].message.content or ""

    return ask


async def answer(agent: pco.Agent, lm: ScriptedLM, prompt: Any = "Say P.") -> pco.Output:
    prompt = prompt if isinstance(prompt, Prompt) else Prompt(prompt)
    return await agent(prompt, EXAMPLE, BoundChat(lm, lambda purpose: 0, prompt=prompt))


def texts(lm: ScriptedLM, at: int = -1) -> list[str]:
    return [m.content for m in lm.history[at].messages]
