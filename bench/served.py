"""Learning after deployment, measured on SmolLM2: two topics drift in behind `pco serve`.

The messages are those of `houserules`: three topics in training (24 messages), five behind the
server (42 messages). The codebook has the rules of eight topics. All replies are SmolLM2's own,
greedy, at most 40 new tokens, the rule last in the customer's turn. Each message is answered under
each of the eight rules and under none, once; the replies are kept in a file, and whatever asks the
model is answered from it. The user who gives feedback is the task's own checker.

1. Traffic: for five seeds a router is trained (preset small), and served by `pco serve --feedback
   --explore 0.1` over HTTP: 250 requests on the three topics, then four times 250 of which half are
   on the two new ones. One server's policy file is replaced by `pco learn` after each 250, and the
   other's is not.
2. Splits: 200 times a log of 500 requests is drawn with half of it explored, and a router fitted to
   it; 2,000 later ones judge that. The truth is the router's mean reward over all messages.
3. Null control: the same with the rewards dealt out to requests at random.

Expected, and written down before any figure was seen:

- in the last 250 requests the server that learns earns at least 0.1 more, in the mean of the seeds,
  and the 95 % interval over seeds is above 0;
- the 95 % interval of the doubly robust estimate holds the truth in at least 90 % of the splits in
  which enough was logged, and these are at least half of the 200;
- with shuffled feedback the router gains at most 0.02, and the lower end of its estimated gain is
  above 0 in at most 5 % of the 200.

Measured: the last 250 requests earn 0.732 instead of 0.282, a gain of +0.450 (+0.326 to +0.574 by
Student's t over five seeds). The interval held the truth in 95.5 % of 200 splits, and enough was
logged in all. With shuffled feedback 2.0 % would be promoted, and the routes lose 0.101. At
`--explore 0.1` no `pco learn` of the traffic had logged enough for an estimate. One thing was
changed after the figures: the first interval over seeds was one that five values can never lift
above 0.

    python -m bench.served                      # replies are kept in served-replies.json
    PCO_BENCH_SEEDS=1 PCO_BENCH_SPLITS=20 python -m bench.served

Needs: pip install 'promptcodebook[serve,router,local]'
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import aiohttp
from aiohttp import web

import promptcodebook as pco
from bench.figures import Figure, shown
from promptcodebook.base.intervals import SIDE, Interval, student_quantile
from promptcodebook.base.paths import write_whole
from promptcodebook.calls import Message, Reply, Request, Sampling
from promptcodebook.deploy.online.exploring import Explorer
from promptcodebook.deploy.online.learning import TrainedRouter, estimate, read_training, refit
from promptcodebook.deploy.online.log import Logged, Served
from promptcodebook.lm.spec import parse_spec
from promptcodebook.paper.tasks.houserules.task import SIX, present_prompt, reward, topics_of
from promptcodebook.policy.file import PolicyFile
from promptcodebook.routing.ranking import Ranker, buckets_of
from promptcodebook.tasks.task import load_task
from promptcodebook.types import Example, Ranking, Route, Score

OLD, NEW = ("invoice", "cancel", "address"), ("refund", "visit")
RULES = present_prompt((*SIX, *NEW)).partition("\n\n")[2].splitlines()
OUT = Path(os.environ.get("PCO_BENCH_REPLIES", "served-replies.json"))
SEEDS = int(os.environ.get("PCO_BENCH_SEEDS", "5"))
SPLITS = int(os.environ.get("PCO_BENCH_SPLITS", "200"))
PHASE = int(os.environ.get("PCO_BENCH_PHASE", "250"))
PHASES, EXPLORE = 5, 0.1
FITTED, HELD = 500, 2000


def messages(split: str, counts: Mapping[str, int]) -> list[Example]:
    """The first messages of each topic alone."""
    found: dict[str, list[Example]] = {topic: [] for topic in counts}
    for example in getattr(load_task("houserules").dataset, split):
        if len(topics := topics_of(example)) == 1 and topics[0] in counts:
            found[topics[0]].append(example)
    return [e for topic, count in counts.items() for e in found[topic][:count]]


TRAIN = messages("train", dict.fromkeys(OLD, 8))
OLD_ASKED = messages("test", dict.fromkeys(OLD, 6))
NEW_ASKED = messages("test", dict.fromkeys(NEW, 12))


class Replies:
    """What SmolLM2 answers to each message under each rule; "" = none."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known
        examples = (*TRAIN, *OLD_ASKED, *NEW_ASKED)
        self._name = {example.input: example.id for example in examples}
        self._rewards = {
            (example.id, rule): reward(example, known[f"{example.id} {number}"]).value
            for example in examples
            for number, rule in enumerate(("", *RULES), -1)
        }

    def reply(self, turns: Sequence[Mapping[str, Any]]) -> str:
        """To a message and the rule that is its system prompt; what has more rules has no reply."""
        said = {turn["role"]: str(turn["content"]).strip() for turn in turns}
        rule = RULES.index(said["system"]) if said.get("system") in RULES else -1
        if said.get("system") and rule < 0:
            return ""
        return self.known[f"{self._name[said['user']]} {rule}"]

    def reward(self, example: Example, route: tuple[int, ...], texts: Sequence[str]) -> float:
        return self._rewards[example.id, "".join(texts[k] for k in route)]


def read_replies(out: Path) -> dict[str, str]:
    """All replies, those that the file lacks from SmolLM2 now."""
    known: dict[str, str] = json.loads(out.read_text("utf-8")) if out.exists() else {}
    asyncio.run(_ask_model(known, out))
    return known


async def _ask_model(known: dict[str, str], out: Path) -> None:
    pairs = [(e, n) for e in (*TRAIN, *OLD_ASKED, *NEW_ASKED) for n in range(-1, len(RULES))]
    lacking = [(e, n) for e, n in pairs if f"{e.id} {n}" not in known]
    if not lacking:
        return
    from promptcodebook.models.local.lm import LocalModels

    models, places = LocalModels(), asyncio.Semaphore(32)
    lm = models.connect(parse_spec("smollm2", {}))

    async def one(example: Example, number: int) -> None:
        turn = "\n\n".join(filter(None, (example.input, RULES[number] if number >= 0 else "")))
        sampling = Sampling(temperature=0.0, max_tokens=40)
        async with places:
            asked = Request("executor", (Message("user", turn),), greedy=True, sampling=sampling)
            known[f"{example.id} {number}"] = (await lm(asked)).text

    for at in range(0, len(lacking), 128):
        await asyncio.gather(*(one(*each) for each in lacking[at : at + 128]))
        write_whole(out, json.dumps(known, ensure_ascii=False))
    await models.close()


@dataclass(frozen=True)
class World:
    replies: Replies
    run: pco.Run
    file: PolicyFile
    trained: TrainedRouter

    @property
    def texts(self) -> tuple[str, ...]:
        return self.file.parameters.codebook.texts

    def earns(self, ranking: Ranking) -> float:
        """The mean reward of its routes over the traffic with both kinds of topics."""
        ranker, select = Ranker(ranking, self.texts), self.file.select
        halves = [
            fmean(self.replies.reward(e, ranker.choose(e.input, select), self.texts) for e in asked)
            for asked in (OLD_ASKED, NEW_ASKED)
        ]
        return fmean(halves)

    def log(self, count: int, explore: float, draw: random.Random) -> list[Logged]:
        """Requests of both kinds as a server routes and logs them."""
        assert self.file.router is not None
        explorer = Explorer(self.file, explore, draw.randrange(2**31))
        ranker, logs = Ranker(self.file.router.ranking, self.texts), list[Logged]()
        known = {
            e.id: (
                Route(ranker.choose(e.input, self.file.select)),
                ranker.expected(e.input),
                buckets_of(e.input),
            )
            for e in (*OLD_ASKED, *NEW_ASKED)
        }
        for n in range(count):
            example = draw.choice(OLD_ASKED if draw.random() < 0.5 else NEW_ASKED)
            best, expected, said = known[example.id]
            tried = explorer.choose(best, expected, str(n))
            route = tried.route.indices
            rest = "", "", 200, 0.0, None, route, tried.propensity, said
            served = Served(str(n), float(n), "", "", *rest)
            logs.append(Logged(served, self.replies.reward(example, route, self.texts)))
        return logs


def train(replies: Replies, folder: Path, seed: int) -> World:
    async def lm(request: Request) -> Reply:
        return Reply(
            replies.reply([{"role": m.role, "content": m.content} for m in request.messages])
        )

    def checked(example: Example, output: str) -> Score:
        return reward(example, output)

    data = pco.Dataset(tuple(TRAIN), (), (), "served")
    config: dict[str, Any] = {
        "preset": "small",
        "size": len(RULES),
        "init": {"kind": "from_prompt", "prompt": "\n".join(RULES)},
        "update": {"epochs": 16},
        "roles": {"executor": {"temperature": 0.0}},
        "seed": seed,
    }
    run = pco.optimize(data, checked, lm, config=config, runs_dir=folder / "runs", progress=False)
    file = run.policy.file
    assert set(file.parameters.codebook.texts) == set(RULES)
    return World(replies, run, file, read_training(run.path, file, data))


# --- traffic ---


@asynccontextmanager
async def upstream(replies: Replies) -> AsyncGenerator[str]:
    """SmolLM2's kept replies behind /v1/chat/completions."""

    async def answer(request: web.Request) -> web.Response:
        said = {"role": "assistant", "content": replies.reply((await request.json())["messages"])}
        choices = [{"index": 0, "finish_reason": "stop", "message": said}]
        return web.json_response({"id": "x", "object": "chat.completion", "choices": choices})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server: Any = site._server  # pyright: ignore[reportPrivateUsage]
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1#smollm2"
    finally:
        await runner.cleanup()


def prepare(world: World, folder: Path) -> tuple[Path, dict[str, str]]:
    """The policy file of one server, in a folder with all that it keeps, and its environment."""
    folder.mkdir()
    path = folder / "shop.pco.json"
    world.file.with_about(run=world.run.id).save(path)
    environment = os.environ | {
        "PCO_FEEDBACK": str(folder / "requests.sqlite"),
        "PCO_REQUESTS": str(folder / "requests.sqlite"),
        "PCO_REGISTRY": str(folder / "registry.sqlite"),
        "PCO_RUNS": str(world.run.path.parent),
        "PCO_API_KEY": "none",
    }
    splits = [*((e, "train") for e in TRAIN), (OLD_ASKED[0], "val"), (OLD_ASKED[1], "test")]
    rows = [{"id": e.id, "message": e.input, "split": split} for e, split in splits]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    columns = 'input = "message", target = "message", id = "id"'
    split = f'path = "rows.jsonl", split = "split", {columns}'
    (folder / "pco.toml").write_text(f"data = {{{split}}}\n", "utf-8")
    return path, environment


async def traffic(world: World, folder: Path, spec: str, seed: int, *, learns: bool) -> list[float]:
    """The mean reward of each phase, as the server's callers see it."""
    path, environment = prepare(world, folder)
    command = [sys.executable, "-m", "promptcodebook.cli"]
    options = ["--lm", spec, "--feedback", "--explore", str(EXPLORE), "--port", "0"]
    server = await asyncio.create_subprocess_exec(
        *command, "serve", str(path), *options, stdout=subprocess.PIPE, env=environment
    )
    assert server.stdout is not None
    url = (await server.stdout.readline()).decode().strip()
    draw, earned = random.Random(f"traffic {seed}"), list[float]()
    places = asyncio.Semaphore(16)
    try:
        async with aiohttp.ClientSession() as http:

            async def one(example: Example) -> float:
                turns = [{"role": "user", "content": example.input}]
                body = {"model": "pco/shop", "messages": turns}
                async with places:
                    async with http.post(f"{url}/chat/completions", json=body) as answer:
                        answer.raise_for_status()
                        said = (await answer.json())["choices"][0]["message"]["content"]
                        name = answer.headers["x-request-id"]
                    value = reward(example, said).value
                    given = {"request_id": name, "reward": value}
                    async with http.post(f"{url}/feedback", json=given) as answer:
                        answer.raise_for_status()
                return value

            for phase in range(PHASES):
                new = [phase > 0 and draw.random() < 0.5 for _ in range(PHASE)]
                asked = [draw.choice(NEW_ASKED if each else OLD_ASKED) for each in new]
                earned.append(fmean(await asyncio.gather(*map(one, asked))))
                if learns:
                    given = ["learn", str(path), "--config", str(folder), "-o", str(path)]
                    learning = await asyncio.create_subprocess_exec(
                        *command, *given, env=environment, stdout=subprocess.PIPE
                    )
                    said, _ = await learning.communicate()
                    assert learning.returncode == 0
                    print(
                        f"  seed {seed}, phase {phase}: "
                        + " | ".join(said.decode().split("\n")[:3])
                    )
                    await asyncio.sleep(1.0)  # The server looks four times a second.
    finally:
        server.terminate()
        await server.wait()
    return earned


# --- splits ---


def split(world: World, number: int, *, shuffled: bool) -> tuple[bool, bool, bool, float]:
    """Whether enough was logged, the truth is in the interval, and it would be promoted; the true
    gain."""
    draw = random.Random(f"split {number}")
    logs = world.log(FITTED + HELD, 0.5, draw)
    if shuffled:
        rewards = [each.reward for each in logs]
        draw.shuffle(rewards)
        logs = [replace(each, reward=value) for each, value in zip(logs, rewards, strict=True)]
    ranking = refit(world.file, world.trained, logs[:FITTED], 1e9, {"": 0})[0]
    worth, truth = estimate(world.file, ranking, logs[FITTED:]), world.earns(ranking)
    assert world.file.router is not None
    gain = truth - world.earns(world.file.router.ranking)
    inside = worth.new.low <= truth <= worth.new.high
    return worth.known, inside, worth.known and worth.gain.low > 0, gain


def traffic_figures(worlds: Sequence[World], folder: Path) -> list[Figure]:
    async def one(world: World, spec: str, seed: int, learns: bool) -> list[float]:
        phases = await traffic(world, folder / f"{seed} {learns}", spec, seed, learns=learns)
        said = " ".join(f"{value:.3f}" for value in phases)
        print(f"  seed {seed} {'learns' if learns else 'stays '}: {said}", flush=True)
        return phases

    async def all_traffic() -> list[list[list[float]]]:
        async with upstream(worlds[0].replies) as spec:
            return [
                [await one(world, spec, seed, learns) for learns in (True, False)]
                for seed, world in enumerate(worlds)
            ]

    earned = asyncio.run(all_traffic())
    gains = [learns[-1] - stays[-1] for learns, stays in earned]
    half = student_quantile(len(gains) - 1, SIDE) * stdev(gains) / len(gains) ** 0.5
    gain = Interval(fmean(gains), fmean(gains) - half, fmean(gains) + half, len(gains))
    return [
        Figure("reward of the last phase, learning", fmean(a[-1] for a, _ in earned)),
        Figure("reward of the last phase, as it was", fmean(b[-1] for _, b in earned)),
        Figure("gain", gain.mean, "", 0.1, True, gain.text(signed=True)),
        Figure("gain, lower end over seeds", gain.low, "", 0.0, True),
    ]


def split_figures(worlds: Sequence[World]) -> list[Figure]:
    done, null = list[tuple[bool, bool, bool, float]](), list[tuple[bool, bool, bool, float]]()
    for n in range(SPLITS):
        done.append(split(worlds[n % len(worlds)], n, shuffled=False))
        null.append(split(worlds[n % len(worlds)], n, shuffled=True))
        print(f"  split {n}: {done[-1]}, shuffled {null[-1]}", flush=True)
    known = [each for each in done if each[0]]
    covered = fmean(each[1] for each in known) if known else 0.0
    of = f"{len(known)} of {SPLITS}"
    return [
        Figure("splits with enough logged", len(known) / SPLITS, "", 0.5, True, of),
        Figure("of these, the interval holds the truth", covered, "", 0.9, True),
        Figure("promoted", fmean(each[2] for each in done)),
        Figure("true gain", fmean(each[3] for each in done)),
        Figure("shuffled: promoted", fmean(each[2] for each in null), "", 0.05),
        Figure("shuffled: true gain", fmean(each[3] for each in null), "", 0.02),
    ]


def measure() -> list[Figure]:
    replies = Replies(read_replies(OUT))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        worlds = [train(replies, folder, seed) for seed in range(SEEDS)]
        print(f"  {len(worlds)} routers trained", flush=True)
        served = traffic_figures(worlds, folder) if PHASE else []
        return [*served, *(split_figures(worlds) if SPLITS else [])]


if __name__ == "__main__":
    raise SystemExit(shown(measure, __doc__ or ""))
