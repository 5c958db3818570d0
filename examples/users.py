"""Users of the served policy: they ask what the task's users ask, and grade each answer."""

import asyncio
import sys

import aiohttp
from promptcodebook.tasks.constraints.task import load_constraints, reward


async def main(rounds: int) -> None:
    data = load_constraints().dataset
    async with aiohttp.ClientSession("http://localhost:8080") as http:
        for example in [*data.val, *data.test] * rounds:
            said = {"messages": [{"role": "user", "content": example.input}]}
            async with http.post("/v1/chat/completions", json=said) as answer:
                body, asked = await answer.json(), answer.headers["x-request-id"]
            score = reward(example, body["choices"][0]["message"]["content"])
            said = {"request_id": asked, "reward": score.value, "feedback": score.feedback}
            async with http.post("/v1/feedback", json=said) as answer:
                answer.raise_for_status()


asyncio.run(main(int(sys.argv[1])))
