"""POST /answer {"text": "..."} -> the answer, and which instincts it was prompted with."""

from contextlib import asynccontextmanager

from agent import run
from fastapi import FastAPI
from pydantic import BaseModel

import promptcodebook as pco


class Message(BaseModel):
    text: str


@asynccontextmanager
async def open_policy(app: FastAPI):
    async with pco.load_policy("library.pco.json", lm="smollm2", executor=run) as app.state.policy:
        yield


app = FastAPI(lifespan=open_policy)


@app.post("/answer")
async def answer(message: Message):
    given = await app.state.policy.arespond(message.text)
    return {"answer": given.text, "prompt": given.prompt, "instincts": given.route.indices}
