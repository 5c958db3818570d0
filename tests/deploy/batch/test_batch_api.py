"""`--batch-api`: the executor's calls at half price, each paid for once, whatever happens."""

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai.types.batch import Batch as TheirBatch
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import BaseModel, ConfigDict, TypeAdapter

from promptcodebook.deploy.batch.provider import BatchPending, read_results
from promptcodebook.deploy.batch.provider import BatchReply as Landed
from promptcodebook.deploy.batch.provider import Provider as Batches
from promptcodebook.errors import RunBusy
from promptcodebook.lm.limit import StopSignal
from promptcodebook.lm.spec import ApiKey, Credentials, parse_spec
from tests.build.batch import ROUTE, read_lines, write_rows
from tests.build.cli import Result, pco, running, served
from tests.build.clock import until
from tests.build.server import Server, says

Answer = Callable[[dict[str, Any]], dict[str, Any] | tuple[int, dict[str, Any]]]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def completion(text: str) -> dict[str, Any]:
    """The body of a good answer."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "choices": [choice], "usage": USAGE}


def echo(body: dict[str, Any]) -> dict[str, Any]:
    return completion(f"As far as that: {body['messages'][-1]['content']}")


def refused(message: str, status: int = 400) -> tuple[int, dict[str, Any]]:
    return status, {"error": {"message": message}}


class Provider:
    """Routes live, answers rows of batches by `answer`. `states` are what each batch is shown as
    before it is over; `ends` what it ends as, with all rows answered but the last `open`. At
    `stops_at` it does its work and never says so: 'files', 'batches', 'poll' or 'content'."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.default = says(ROUTE)
        self.answer: Answer = echo
        self.states: list[str] = []
        self.ends, self.open = "completed", 0
        self.stops_at = ""
        self.reached = threading.Event()
        self.paid = Counter[str]()
        self.uploads: list[bytes] = []
        self.batches: list[dict[str, Any]] = []
        self.busy, self.retry_after = Counter[str](), 2
        self.seen: list[str] = []
        self._files: dict[str, bytes] = {}
        for path, handler in (
            ("/v1/files", self._upload),
            ("/v1/batches", self._all),
            ("/v1/batches/{id}", self._one),
            ("/v1/files/{id}/content", self._content),
        ):
            self.server.extra_routes.append((path, handler))

    @property
    def spec(self) -> str:
        return self.server.spec

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Every row of every file that was uploaded."""
        return [json.loads(line) for data in self.uploads for line in data.splitlines()]

    async def _answer(self, name: str, body: Any) -> web.StreamResponse:
        self.seen.append(name)
        while self.stops_at == name:
            self.reached.set()
            await asyncio.sleep(0.02)
        if self.busy[name]:
            self.busy[name] -= 1
            headers = {"Retry-After": str(self.retry_after)}
            return web.json_response({"error": {"message": "busy"}}, status=429, headers=headers)
        return web.json_response(body)

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        parts = {part.name: await part.read() async for part in await request.multipart()}
        assert parts.keys() == {"purpose", "file"} and parts["purpose"] == b"batch"
        assert request.headers["Authorization"] == "Bearer sk-test"
        name = f"file-{len(self._files)}"
        self._files[name] = bytes(parts["file"])
        self.uploads.append(self._files[name])
        return await self._answer("files", {"id": name, "object": "file", "purpose": "batch"})

    async def _all(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"data": self.batches[::-1], "has_more": False})
        order = await request.json()
        assert order["endpoint"] == "/v1/chat/completions" and order["completion_window"] == "24h"
        assert all(isinstance(value, str) for value in order["metadata"].values())
        rows = [json.loads(line) for line in self._files[order["input_file_id"]].splitlines()]
        number, good, bad = len(self.batches), list[Any](), list[Any]()
        for row in rows if self.ends != "failed" else ():
            if len(rows) - len(good) - len(bad) <= self.open:
                error = {"code": f"batch_{self.ends}", "message": "too late"}
                bad.append({"custom_id": row["custom_id"], "response": None, "error": error})
                continue
            made = self.answer(row["body"])
            status, body = made if isinstance(made, tuple) else (200, made)
            self.paid[row["custom_id"]] += status == 200
            response = {"status_code": status, "request_id": "r", "body": body}
            line = {"id": "x", "custom_id": row["custom_id"], "response": response, "error": None}
            (good if status == 200 else bad).append(line)
        for kind, lines in (("out", good), ("err", bad)):
            text = "".join(json.dumps(line) + "\n" for line in lines)
            self._files[f"{kind}-{number}"] = text.encode()
        now = int(time.time())
        batch = {
            "id": f"batch_{number}",
            "metadata": order["metadata"],
            "created_at": now - 600,
            f"{self.ends}_at": now,
            "output_file_id": f"out-{number}" if good else None,
            "error_file_id": f"err-{number}" if bad else None,
            "errors": {"data": [{"line": 2, "message": "no such model"}]},
            "_states": [*self.states, self.ends],
            "_total": len(rows),
        }
        self.batches.append(batch)
        return await self._answer("batches", {**batch, "status": "validating"})

    async def _one(self, request: web.Request) -> web.StreamResponse:
        batch = next(each for each in self.batches if each["id"] == request.match_info["id"])
        states: list[str] = batch["_states"]
        status = states.pop(0) if len(states) > 1 else states[0]
        done = batch["_total"] if len(states) == 1 and status == self.ends else 1
        counts = {"total": batch["_total"], "completed": done, "failed": 0}
        return await self._answer("poll", {**batch, "status": status, "request_counts": counts})

    async def _content(self, request: web.Request) -> web.StreamResponse:
        data = self._files[request.match_info["id"]]
        if self.stops_at == "content":
            await self._answer("content", None)
        self.seen.append("content")
        return web.Response(body=data)


# `--batch-api`: the executor's calls at half price, each paid for once, whatever happens.

ROWS = 12
TOML = """
reward = {kind = "contains"}
data = {path = "data.jsonl", input = "question", target = "answer", split = "split"}
"""


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    monkeypatch.setenv("PCO_API_KEY", "sk-test")
    monkeypatch.setattr("promptcodebook.deploy.batch.provider._FIRST_S", 0.2)
    made = Provider()
    with served(made.server):
        yield made


@pytest.fixture
def folder(work: Path) -> Path:
    (work / "pco.toml").write_text(TOML)
    rows = [
        {"question": f"How far is {n}?", "answer": f"How far is {n}?", "split": split}
        for n, split in enumerate(["train"] * 2 + ["test"] * ROWS)
    ]
    (work / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_rows(work / "in.jsonl", ROWS)
    return work


def evaluate(folder: Path, provider: Provider, *more: str) -> Result:
    named = ("p.json", "pco.toml", "--lm", provider.spec)
    return pco("eval", *named, "--json", *more, cwd=folder)


def leftovers(folder: Path) -> list[Path]:
    return [*folder.glob("**/batch.json")]


def prices(provider: Provider, share: str = ",batch=0.5") -> tuple[str, ...]:
    tree = f'{{"{provider.spec}": {{"prompt": 1.0, "completion": 2.0'
    tree += ', "batch": 0.5}}' if share else "}}"
    caps = ("roles.executor.max_tokens=1000", "roles.encoder.max_tokens=50")
    return ("--set", f"prices={tree}", *(word for cap in caps for word in ("--set", cap)))


def test_an_evaluation_asks_one_batch_at_half_price(folder: Path, provider: Provider) -> None:
    provider.states = ["validating", "in_progress"]
    made = evaluate(folder, provider, "--batch-api", *prices(provider))
    assert made.code == 0, made.err
    assert len(provider.batches) == 1 and provider.paid.total() == ROWS == len(provider.paid)
    assert made.json["score"]["mean"] == 1.0 and made.json["n"] == ROWS
    # 1 call of the encoder at the full price, 1 of the executor at half of (100 + 2 * 10) / 1e6
    usage = made.json["per_query"]
    assert usage["cost"] == pytest.approx((7 + 2 * 3 + (100 + 2 * 10) / 2) / 1e6)
    assert usage["latency_s"] >= 600, "as long as the batch took"
    assert f"batch_0: {ROWS} requests submitted" in made.err
    assert f"in progress, 1 of {ROWS}" in made.err and f"completed, {ROWS} of {ROWS}" in made.err
    assert leftovers(folder) == []
    live = provider.server.calls
    again = evaluate(folder, provider, "--batch-api", *prices(provider))
    assert (again.code, len(provider.batches), provider.server.calls) == (0, 1, live)
    assert again.json["score"] == made.json["score"], "the cache has what the batch brought"


def test_a_file_of_rows_is_answered_by_a_batch(folder: Path, provider: Provider) -> None:
    args = ("batch", "p.json", "in.jsonl", "out.jsonl", "--lm", provider.spec, "--json")
    made = pco(*args, "--batch-api", "--set", "cache=false", cwd=folder)
    assert made.code == 0, made.err
    rows = read_lines(folder / "out.jsonl")
    assert [row["answer"] for row in rows] == [
        f"As far as that: How far is {n}?" for n in range(ROWS)
    ]
    assert made.json["calls"] == 2 * ROWS and len(provider.batches) == 1
    assert not (folder / "out.jsonl.part").exists()
    refused = pco(*args, "--batch-api", "--ray", "local", "--restart", cwd=folder)
    refused.error(2, "one by one", "leave out --ray")


def test_a_budget_holds_at_the_highest_cost_of_the_batch(folder: Path, provider: Provider) -> None:
    known = prices(provider)
    over = evaluate(folder, provider, "--batch-api", "--budget", "0.005usd", *known)
    over.error(3, "the budget is reached", f"the next batch, of {ROWS} requests, may cost up to")
    assert provider.uploads == []
    few = evaluate(folder, provider, "--batch-api", "--budget", "10calls", *known)
    few.error(3, f"10 calls (0 made; the next batch has {ROWS})")
    unknown = evaluate(
        folder, provider, "--batch-api", "--budget", "1usd", *prices(provider, share="")
    )
    unknown.error(2, "needs the price of a batch", "batch = 0.5")
    assert provider.uploads == []
    enough = evaluate(folder, provider, "--batch-api", "--budget", "1usd", *known)
    assert enough.code == 0 and provider.paid.total() == ROWS
    free = prices(provider, share="")
    other = evaluate(folder, provider, "--batch-api", *free, "--set", "seed=1", "--row", "none")
    assert other.json["per_query"]["cost"] is None, "unknown, and not the full price"


def test_a_row_that_fails_is_a_failed_rollout_and_never_cached(
    folder: Path, provider: Provider
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        return refused("no") if text in ("How far is 3?", "How far is 5?") else completion(text)

    provider.answer = answer
    made = evaluate(folder, provider, "--batch-api")
    failed = [each["failed"] for each in made.json["examples"] if each["failed"]]
    assert failed == ["execute: RequestRefused"] * 2 and made.json["failed"] == 2
    assert leftovers(folder) == []
    provider.answer = lambda body: completion(body["messages"][-1]["content"])
    again = evaluate(folder, provider, "--batch-api")
    assert again.json["failed"] == 0 and again.json["score"]["mean"] == 1.0
    assert len(provider.batches) == 2 and provider.paid.total() == ROWS == len(provider.paid)


def broken(text: str, reason: str = "error") -> dict[str, Any]:
    """The body of an answer that the model's server broke off."""
    body = completion(text)
    body["choices"][0]["finish_reason"] = reason
    return body


@pytest.mark.parametrize("batches", [2, 3, None])
def test_a_row_that_was_broken_off_is_asked_by_the_next_batch(
    folder: Path, provider: Provider, batches: int | None
) -> None:
    """With None every batch breaks it off: then the row fails, and `--restart` asks it again."""

    def answer(body: dict[str, Any]) -> Any:
        text = body["messages"][-1]["content"]
        mends = batches is not None and len(provider.batches) >= batches - 1
        return completion(text) if mends or text != "How far is 3?" else broken("How")

    provider.answer = answer
    args = ("batch", "p.json", "in.jsonl", "out.jsonl", "--lm", provider.spec, "--json")
    made = pco(*args, "--batch-api", "--set", "retries=2", cwd=folder)
    asked = batches or 3
    assert made.json["failed"] == (batches is None) and len(provider.batches) == asked
    assert made.json["calls"] == 2 * ROWS + asked - 1, "what is broken off is paid for"
    if batches is None:
        provider.answer = lambda body: completion(body["messages"][-1]["content"])
        asked, made = 4, pco(*args, "--batch-api", "--restart", cwd=folder)
    assert (made.json["failed"], len(provider.batches)) == (0, asked) and leftovers(folder) == []
    answers = [row["answer"] for row in read_lines(folder / "out.jsonl")]
    assert answers == [f"How far is {n}?" for n in range(ROWS)]


def test_a_field_that_is_refused_is_left_out_of_a_second_batch(
    folder: Path, provider: Provider
) -> None:
    def answer(body: dict[str, Any]) -> Any:
        if "max_tokens" in body:
            return refused("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.")
        return completion(body["messages"][-1]["content"])

    provider.answer = answer
    made = evaluate(folder, provider, "--batch-api")
    assert made.json["failed"] == 0 and len(provider.batches) == 2
    assert provider.paid.total() == ROWS
    assert "max_completion_tokens" in provider.requests[-1]["body"]


@pytest.mark.parametrize("ends", ["expired", "cancelled"])
def test_what_a_batch_left_open_is_asked_by_the_next(
    folder: Path, provider: Provider, ends: str
) -> None:
    provider.ends, provider.open = ends, 4
    first = evaluate(folder, provider, "--batch-api")
    first.error(
        3, f"batch_0 at {provider.server.url}", ends, "4 requests unanswered", "same command"
    )
    provider.ends, provider.open = "completed", 0
    second = evaluate(folder, provider, "--batch-api")
    assert second.code == 0 and second.json["score"]["mean"] == 1.0
    assert provider.paid.total() == ROWS == len(provider.paid)
    assert len(provider.uploads[1].splitlines()) == 4
    assert leftovers(folder) == []


def test_what_cannot_be_handed_in_says_why(folder: Path, provider: Provider) -> None:
    provider.ends = "failed"
    evaluate(folder, provider, "--batch-api").error(2, "refused the batch batch_0: no such model")
    assert leftovers(folder) == []
    args = ("eval", "p.json", "pco.toml", "--batch-api", "--lm", "simulated")
    pco(*args, cwd=folder).error(2, "simulated takes no batches", "leave out --batch-api")
    secret = ("--set", 'roles.executor.extra={"api_key": "$PCO_API_KEY"}')
    evaluate(folder, provider, "--batch-api", *secret).error(
        2, "would write $PCO_API_KEY into the file"
    )


@pytest.mark.usefixtures("provider")
def test_an_endpoint_without_batches_is_named(folder: Path) -> None:
    bare = Provider()
    bare.server.extra_routes.clear()
    with served(bare.server):
        error = evaluate(folder, bare, "--batch-api")
    error.error(2, "has no batches: POST /files was answered with 404", "--batch-api")
    assert leftovers(folder) == []


@pytest.mark.parametrize("at", ["files", "batches"])
def test_a_busy_provider_is_asked_again_when_it_says(
    folder: Path, provider: Provider, at: str
) -> None:
    """A batch that it took all the same is not submitted twice."""
    provider.busy[at], began = 1, time.monotonic()
    made = evaluate(folder, provider, "--batch-api")
    assert made.code == 0, made.err
    assert time.monotonic() - began > provider.retry_after
    assert provider.paid.total() == ROWS == len(provider.paid)


class BatchRequestInput(BaseModel):
    """A line of the file: these four fields alone, and the body by its address."""

    model_config = ConfigDict(extra="forbid")
    custom_id: str
    method: str
    url: str
    body: CompletionCreateParamsNonStreaming


def test_rows_and_batches_have_the_shapes_of_the_sdk(folder: Path, provider: Provider) -> None:
    assert evaluate(folder, provider, "--batch-api").code == 0
    reader = TypeAdapter(BatchRequestInput)
    for line in provider.uploads[0].splitlines():
        row = reader.validate_json(line)
        assert (row.method, row.url) == ("POST", "/v1/chat/completions")
        assert 1 <= len(row.custom_id) <= 64 and row.custom_id.isalnum()
    shown = {"status": "completed", "object": "batch", "endpoint": row.url, "input_file_id": "f"}
    TheirBatch.model_validate({**provider.batches[0], **shown, "completion_window": "24h"})


ROW = {"a": {"model": "m", "messages": [{"role": "user", "content": "hi"}]}}


def batches(home: Path, provider: Provider, count: int) -> list[Batches]:
    """As that many processes have them."""
    key, spec = Credentials(ApiKey("PCO_API_KEY", "sk-test")), parse_spec(provider.spec, {})
    options: Any = {"stop": StopSignal(), "tell": print, "timeout": 10.0, "private": False}
    return [Batches(spec, key, home, **options) for _ in range(count)]


async def test_of_two_that_find_nothing_one_submits(tmp_path: Path, provider: Provider) -> None:
    landed, home = list[str](), tmp_path / "kept" / "batches"

    async def land(key: str, result: Landed) -> None:
        landed.append(key)

    made = batches(home, provider, 2)
    for each in made:
        await each.open()
    asking = (each.answer(ROW, land) for each in made)
    first, second = await asyncio.gather(*asking, return_exceptions=True)
    for each in made:
        await each.close()
    assert first is None and isinstance(second, RunBusy)
    assert landed == ["a"] and len(provider.uploads) == 1 and not [*home.glob("*/batch.json")]


@pytest.mark.parametrize("killed_at", ["files", "batches", "poll"])
async def test_what_a_killed_process_did_not_note_is_looked_for_by_one_that_waited(
    tmp_path: Path, provider: Provider, killed_at: str
) -> None:
    """It read the notes while the other one submitted: what that came to, it asks the provider."""
    landed, home = list[str](), tmp_path / "kept" / "batches"

    async def land(key: str, result: Landed) -> None:
        landed.append(key)

    first, second, third = batches(home, provider, 3)
    provider.stops_at = "files"
    await first.open()
    submitting = asyncio.ensure_future(first.answer(ROW, land))
    await until(provider.reached.is_set)
    await second.open()
    provider.reached.clear()
    provider.stops_at = killed_at
    await until(provider.reached.is_set)
    await first.close()  # as a kill: the folder stays, and its lock is free
    submitting.cancel()
    provider.stops_at = ""
    if killed_at == "files":
        with pytest.raises(BatchPending, match="never left"):
            await second.answer(ROW, land)
        await second.close()
        second = third
        await second.open()
    await second.answer(ROW, land)
    await second.close()
    assert landed == ["a"] and len(provider.batches) == 1 and not [*home.glob("*/batch.json")]


SLOW = """
import pathlib, time

def reward(example, output):
    if pathlib.Path("hold").exists() and example.input.endswith("7?"):
        pathlib.Path("held").touch()
        time.sleep(60)
    return float(example.target in output)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "cache"), [
    ("files", "true"),
    ("batches", "false"),
    ("content", "true"),
    ("landed", "true"),
    ("landed", "false"),
])  # fmt: skip
def test_a_kill_pays_for_nothing_twice(
    folder: Path, provider: Provider, moment: str, cache: str
) -> None:
    """Whenever it comes: the provider has answered each row once, and the score is the same."""
    (folder / "reward.py").write_text(SLOW)
    (folder / "pco.toml").write_text(TOML.replace('{kind = "contains"}', '"reward.py:reward"'))
    if moment == "landed":
        (folder / "hold").touch()
    else:
        provider.stops_at = moment
    words = ("eval", "p.json", "pco.toml", "--lm", provider.spec, "--batch-api", "--json")
    words += ("--set", f"cache={cache}")
    env = {**os.environ, "HOME": str(folder)}
    with running(*words, cwd=folder, env=env) as process:
        if moment == "landed":
            asyncio.run(until((folder / "held").exists))
        else:
            assert provider.reached.wait(60)
        process.kill()
        process.wait()
        assert process.returncode == -signal.SIGKILL
    provider.stops_at = ""
    (folder / "hold").unlink(missing_ok=True)
    live = provider.server.calls
    with running(*words, cwd=folder, env=env) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["score"]["mean"] == 1.0
    assert provider.paid.total() == ROWS == len(provider.paid), provider.seen
    assert len(provider.batches) == 1 and provider.server.calls == live == ROWS


@pytest.mark.slow
def test_ctrl_c_leaves_the_batch_to_be_fetched(folder: Path, provider: Provider) -> None:
    provider.states = ["in_progress"] * 1000
    words = ("eval", "p.json", "pco.toml", "--lm", provider.spec, "--batch-api", "--json")
    with running(*words, cwd=folder) as process:
        asyncio.run(until(lambda: "poll" in provider.seen))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "batch_0 continues at" in err
    busy = provider.batches[0]["_states"]
    del busy[:-1]
    with running(*words, cwd=folder) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["n"] == ROWS and provider.paid.total() == ROWS


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--n", "6")])
def test_a_second_process_that_wants_the_same_rows_pays_for_none(
    folder: Path, provider: Provider, more: tuple[str, ...]
) -> None:
    """It says who waits for them; once that process has them, it has them too."""
    provider.states = ["in_progress"] * 10_000
    words = ("eval", "p.json", "pco.toml", "--lm", provider.spec, "--batch-api", "--json")
    env = {**os.environ, "HOME": str(folder)}
    with running(*words, cwd=folder, env=env) as first:
        asyncio.run(until(lambda: "poll" in provider.seen))
        with running(*words, *more, cwd=folder, env=env) as second:
            _, err = second.communicate(timeout=60)
        assert second.returncode == 2 and f"being waited for by process {first.pid}" in err
        assert f"kill -INT {first.pid}" in err
        del provider.batches[0]["_states"][:-1]
        out, err = first.communicate(timeout=120)
    assert first.returncode == 0 and json.loads(out)["n"] == ROWS, err
    with running(*words, *more, cwd=folder, env=env) as again:
        out, err = again.communicate(timeout=60)
    assert again.returncode == 0 and json.loads(out)["score"]["mean"] == 1.0, err
    assert provider.paid.total() == ROWS and len(provider.batches) == 1


@pytest.mark.parametrize(
    "status", ["1e999", "NaN", f"1{'0' * 400}", '"x"', "[" * 9000 + "]" * 9000]
)
def test_a_row_whose_status_is_no_number_is_left_out(status: str) -> None:
    rows = [f'{{"custom_id": "{n}", "response": {{"status_code": {code}, "body": {{}}}}}}'
            for n, code in enumerate(("200", status, "429"))]  # fmt: skip
    found = dict(read_results("\n".join(rows).encode()))
    assert {key: result.status for key, result in found.items()} == {"0": 200, "2": 429}
