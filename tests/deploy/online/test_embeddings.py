"""A served policy whose router reads embeddings: they are kept, and it learns from them."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.calls import Message, Request
from promptcodebook.deploy.online.served_log import Feedback, ServedLog
from promptcodebook.deploy.registry.log import version_of
from promptcodebook.deploy.serve.feedback_endpoint import Online
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.policy.file import read_policy_file
from promptcodebook.routing.ranking import Ranker, packed, unpacked
from tests.build.cli import pco as command
from tests.build.cli import served
from tests.build.proxied import Setup, up
from tests.build.router import BOTH, LETTERS, numbers, reads, vector
from tests.build.server import Server, says
from tests.build.topics import PHRASES, learn, obey


@pytest.mark.slow
async def test_a_router_that_reads_embeddings_learns_by_those_that_were_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of a message say nothing. Users now want the rule of R for what was a P."""
    for name, place in (
        ("RUNS", "runs"),
        ("REQUESTS", "requests.sqlite"),
        ("REGISTRY", "registry"),
    ):
        monkeypatch.setenv(f"PCO_{name}", str(tmp_path / place))
    read = list[str]()

    async def embed(request: web.Request) -> web.Response:
        body = await request.json()
        read.append(body["input"])
        numbers = vector(body["input"])
        data = [{"index": 0, "embedding": numbers if body["model"] == "m" else numbers[::-1]}]
        return web.json_response({"data": data, "usage": {"prompt_tokens": 3}})

    async def answer(request: web.Request, body: Any) -> web.StreamResponse:
        messages = tuple(Message(m["role"], m["content"]) for m in body["messages"])
        return await says(obey(Request("executor", messages)))(request, body)

    server, data = Server(), numbers()
    server.extra_routes.append(("/v1/embeddings", embed))
    server.default = answer
    splits = [*((e, "train") for e in data.train), (data.val[0], "val"), (data.test[0], "test")]
    rows = [{"id": e.id, "text": e.input, "target": e.target, "split": s} for e, s in splits]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    named = 'input = "text", target = "target", id = "id", split = "split"'
    (tmp_path / "pco.toml").write_text(f'data = {{path = "rows.jsonl", {named}}}\n')
    with served(server):
        run = learn(tmp_path / "runs", lm=f"{server.url}#m", data=data, config=BOTH)
        router: Any = run.policy.file.router
        images = {"router": router.model_copy(update={"images": True})}
        file = run.policy.file.model_copy(update=images)
        file.save(tmp_path / "tickets.pco.json")
        version, paid = version_of((tmp_path / "tickets.pco.json").read_bytes()), len(read)
        texts = file.parameters.codebook.texts
        rule = {e: next(k for k, text in enumerate(texts) if f"say {e}" in text) for e in PHRASES}
        wanted = [(rule[letter.replace("P", "R")],) for letter in LETTERS]
        path = tmp_path / "requests.sqlite"
        options: Any = {"online": Online("tickets", ServedLog(path), explores=True)}
        options["sticky"] = "conversation"
        setup = Setup(lm=ScriptedLM().reply_with(reads), options=options, explore=1.0)
        async with up(file, setup) as proxy:

            async def one(n: int) -> None:
                chat: Any = [{"role": "user", "content": f"message {n}"}]
                _, _, got = await proxy.ask(json={"model": "pco/tickets", "messages": chat})
                route = tuple(map(int, filter(None, got["x-pco-route"].split(","))))
                reward = float(route == wanted[n % 4])
                given = {"request_id": got["x-request-id"], "reward": reward}
                assert (await proxy.ask("/v1/feedback", json=given))[0] == 200

            for n in range(200, 440, 40):
                await asyncio.gather(*map(one, range(n, n + 40)))
            await one(200)  # its prompt is known by now
        log = ServedLog(path)
        kept = {unpacked(each.served.vector)[0] for each in log.newest("tickets")}
        assert kept == {unpacked(packed(vector(f"message {n}")))[0] for n in range(200, 440)}
        *_, first = (each.served for each in log.newest("tickets"))
        assert (first.input, first.version) == ("", version)
        log.put(replace(first, id="req-" + "a" * 24, vector=""))  # as an earlier version kept it
        await log.give(Feedback("req-" + "a" * 24, 1.0), None)
        log.close()
        asked = "learn", "tickets.pco.json", "--config", "pco.toml", "-o", "next.pco.json"
        asked += "--set", "cache=false"
        done = command(*asked, cwd=tmp_path)
        assert "fitted to 241 logged requests" in done.out, done
        assert "1 without the embedding that the router reads" in done.out
        assert len(read) == paid, "the run's own replies have those of the training inputs"
        made = read_policy_file(tmp_path / "next.pco.json")
        assert made.router is not None and made.router.images
        rankings = [each.router.ranking for each in (file, made) if each.router]
        fresh = [f"message {n}" for n in range(600, 680)]
        shares = [
            sum(
                Ranker(r, texts).choose(x, 1, vector(x)) == wanted[n % 4]
                for n, x in enumerate(fresh)
            )
            for r in rankings
        ]
        assert shares[0] <= 60 and shares[1] >= 66, shares
        # Another model than the run's makes other numbers.
        other = command(*asked, "--set", f"roles.encoder.model={server.url}#other", cwd=tmp_path)
        other.error(2, "was trained on embeddings from another model")
