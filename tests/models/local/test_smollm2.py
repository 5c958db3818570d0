"""SmolLM2 itself, in short pieces: its weights, its tokenizer, openvino-genai; served; trained."""

import asyncio
import json
import os
import random
import shlex
import string
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from promptcodebook.assemble import Sources
from promptcodebook.calls import Message
from promptcodebook.config import load_config
from promptcodebook.errors import RequestRefused
from promptcodebook.method.policy import route_schema
from promptcodebook.models.local import openvino
from promptcodebook.models.local.engine import Embedding, EmbeddingEngine, Engine, Job, find_weights
from promptcodebook.models.local.lm import load_engine
from promptcodebook.paper.experiments.demo import demo_config, missing_model, rewrite_config, show
from tests.build import clients
from tests.build.cli import pco
from tests.build.local_server import Ours, served_by_us
from tests.build.outbound import ELSEWHERE, OWN, watched

pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load_engine(find_weights("smollm2"))


def tokens(text: str) -> int:
    import openvino_genai

    tokenizer = openvino_genai.Tokenizer(find_weights("smollm2").source)
    return len(tokenizer.encode(text, add_special_tokens=False).input_ids.data[0])


def ask(text: str, **fields: Any) -> Job:
    return Job((Message("user", text),), **fields)


async def test_it_answers_and_says_why_it_ended(engine: Engine) -> None:
    whole, cut, stopped = await asyncio.gather(
        engine.generate(ask("Say hi.", temperature=0.0, max_tokens=60)),
        engine.generate(ask("Count from 1 to 20.", temperature=0.0, max_tokens=5)),
        engine.generate(ask("Count from 1 to 20.", temperature=0.0, max_tokens=60, stop=("3",))),
    )
    assert whole.text
    assert whole.finish == "stop"
    assert (cut.finish, cut.completion_tokens) == ("length", 5)
    assert stopped.finish == "stop"
    assert "2" in stopped.text
    assert "3" not in stopped.text
    assert engine.context_length == 8192
    # The template's system message of its own is part of the prompt.
    assert whole.prompt_tokens == tokens("Say hi.") + 30


async def test_a_reply_is_the_same_in_every_batch(engine: Engine) -> None:
    """Alone, beside others, from a cold cache and a warm one; greedy and drawn. Two of the prompts
    end where a block of the cache does, or a token after."""
    texts = ["Name a colour."] + [f"Name a colour{' of the sky' * n}!" for n in range(1, 14, 2)]
    texts += [each for n in range(40) if (tokens(each := "sky " * n) + 30) % 32 < 2]
    for heat in (0.0, 1.0):
        fields = {"temperature": heat, "max_tokens": 12}
        jobs = [ask(text, seed=seed, **fields) for seed, text in enumerate(texts)]
        together = await asyncio.gather(*map(engine.generate, jobs))
        assert [await engine.generate(job) for job in jobs[::3]] == together[::3]
        assert await asyncio.gather(*map(engine.generate, jobs[::-1])) == together[::-1]


async def test_a_route_of_a_weak_model_is_always_valid(engine: Engine) -> None:
    schema = route_schema(4, 16).body
    asked = "Which four of 16 instincts fit? Reply in JSON."
    made = await asyncio.gather(
        *(engine.generate(ask(asked, seed=i, max_tokens=512, schema=schema)) for i in range(8))
    )
    for each in made:
        assert each.finish == "stop"
        jsonschema.validate(json.loads(each.text), dict(schema))


async def test_the_model_s_marks_in_a_message_are_text(engine: Engine) -> None:
    plain, marked = await asyncio.gather(
        engine.generate(ask("ab", max_tokens=1)), engine.generate(ask("a<|im_end|>b", max_tokens=1))
    )
    # One mark would be one token; as text it is several.
    assert marked.prompt_tokens > plain.prompt_tokens + 3


async def test_an_embedding_is_a_fact_of_its_text_and_tells_likeness(engine: Engine) -> None:
    assert isinstance(engine, EmbeddingEngine)
    texts = [
        "My parcel has not come yet, where is it?",
        "The delivery is late again, has it been lost?",
        "I would like to change my password.",
    ]
    parcel, delivery, password = await engine.embed(texts)
    assert (await engine.embed(texts[:1]))[0] == parcel
    assert parcel.tokens == 2 * tokens(texts[0]), "it is read twice"
    assert abs(sum(x * x for x in parcel.vector) - 1.0) < 1e-9

    def likeness(a: Embedding, b: Embedding) -> float:
        return sum(x * y for x, y in zip(a.vector, b.vector, strict=True))

    assert likeness(parcel, delivery) > likeness(parcel, password) + 0.05
    with pytest.raises(RequestRefused, match=r"but SmolLM2\S* embeds texts of 1 to"):
        await engine.embed(["word " * 9000])
    with pytest.raises(RequestRefused, match="has 0 tokens"):
        await engine.embed([""])


def resident_mb() -> float:
    pages = Path("/proc/self/statm").read_text("utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def test_what_grammars_take_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole bound is tested over a scripted pipeline (tests/attack/test_schemas.py)."""
    monkeypatch.setattr(openvino, "_MOST_STATES", 120_000)
    engine = load_engine(find_weights("smollm2"))
    draw, sizes = random.Random(0), list[float]()
    try:
        for _ in range(24):
            values = ["".join(draw.choices(string.ascii_letters, k=17)) for _ in range(1000)]
            await engine.generate(ask("hi", max_tokens=1, schema={"enum": values}))
            sizes.append(resident_mb())
    finally:
        await engine.close()
    # Four or five megabytes for each that is kept, so some 80 without the bound.
    assert max(sizes[8:]) - max(sizes[:8]) < 40, sizes


# SmolLM2 behind `pco lm serve smollm2`, asked by unmodified clients.

TURNS: Any = [{"role": "user", "content": clients.QUESTION}]
PARIS = "The capital of France is Paris."


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    with served_by_us("smollm2", tmp_path_factory.mktemp("smollm2")) as running:
        yield running


def test_openai_asks_at_once(smollm2: Ours) -> None:
    with openai.OpenAI(base_url=smollm2.url, api_key="none") as client:
        reply = client.chat.completions.create(
            model=smollm2.model, messages=TURNS, temperature=0, max_tokens=30
        )
        assert reply.choices[0].message.content == PARIS
        assert reply.choices[0].finish_reason == "stop"
        cut = client.chat.completions.create(
            model="smollm2", messages=TURNS, temperature=0, max_tokens=3
        )
        assert cut.choices[0].finish_reason == "length"
        assert cut.usage is not None and cut.usage.completion_tokens == 3


async def test_openai_asks_side_by_side_and_in_streams(smollm2: Ours) -> None:
    async with openai.AsyncOpenAI(base_url=smollm2.url, api_key="none") as client:
        stream = await client.chat.completions.create(
            model=smollm2.model, messages=TURNS, temperature=0, max_tokens=30, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == PARIS and sum(map(bool, pieces)) > 1
        form: Any = {"max_tokens": 60, "response_format": clients.ENFORCED}
        ask = client.chat.completions.create
        asked = (ask(model=smollm2.model, messages=TURNS, seed=k, **form) for k in range(4))
        typed = await asyncio.gather(*asked)
    for [choice] in (reply.choices for reply in typed):
        assert choice.finish_reason == "stop" and choice.message.content is not None
        assert json.loads(choice.message.content)["answer"] in ("Paris", "London", "Rome")


def test_litellm_dspy_and_gepa_get_what_they_ask_for(smollm2: Ours, tmp_path: Path) -> None:
    before = smollm2.answered
    asked = subprocess.run(
        [sys.executable, clients.__file__, smollm2.url, smollm2.model],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert asked.returncode == 0, asked.stderr[-4000:]
    told = json.loads(asked.stdout[asked.stdout.index('{"litellm"') :])
    by_litellm = told["litellm"]
    # A greedy reply may go on otherwise after a while: it depends on what is computed beside it.
    for text in (by_litellm["text"], by_litellm["streamed"]):
        assert text.startswith(PARIS.rstrip("."))
    assert by_litellm["finish"] == "stop" and by_litellm["tokens"] > 30
    assert by_litellm["typed"]["answer"] in ("Paris", "London", "Rome")
    # What the model says in the object is its own affair; that it is one, with this field, is ours.
    assert isinstance(told["dspy"]["typed"], str) and told["dspy"]["typed"]
    assert told["dspy"]["text"].strip()
    assert told["gepa"]["calls"] >= 6 and told["gepa"]["candidates"] >= 1
    # 3 of litellm, 2 of dspy, 6 answers and a reflection of gepa.
    assert smollm2.answered - before >= 12


# The demo on the weights of SmolLM2, a fraction of its work, and the command of its page.

PAGE = (Path(__file__).parents[3] / "docs" / "smollm2.md").read_text("utf-8")


def test_the_demo_learns_and_judges_on_smollm2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing_model() is None
    monkeypatch.chdir(tmp_path)
    tree = demo_config().model_dump(mode="json")
    tree["update"].update({"epochs": 2, "batch_size": 4})
    tree["validation"]["subset"] = 2
    tree["roles"]["executor"]["max_tokens"] = 24
    config = load_config(tree, {"verdict_examples": 2}, where="the test")
    second = load_config(rewrite_config().model_dump(mode="json"), {"update": {"epochs": 1}})
    assert show(config, Sources(), plain=True, as_json=True, second=second) == 0
    shown = json.loads(capsys.readouterr().out)
    rewrite = shown["rewrite"]
    assert rewrite["n"] == 9 and {"untrained", "learned"} <= rewrite.keys()
    assert {"before", "critic", "after"} <= rewrite.keys(), "the first batch rewrites something"
    rows = {row["name"]: row for row in shown["rows"]}
    named = {"none", "present", "best_single", "concat", "untrained", "learned", "oracle"}
    assert set(rows) == named
    assert all(row["failed"] == 0 and row["score"]["n"] == 2 for row in rows.values())
    assert rows["learned"]["calls_per_query"] == 1.0
    replies = {
        sample[row]["reply"] for sample in shown["samples"] for row in ("present", "learned")
    }
    assert len(replies) > 1 and all(replies)
    assert shown["simulated"] is False and shown["verdict"]


def test_the_command_of_its_page_trains(tmp_path: Path) -> None:
    section = PAGE.split("\n## A real model without an endpoint\n")[1].split("\n## ")[0]
    lines = section.replace("\\\n", " ").splitlines()
    [line] = [line for line in lines if line.startswith("pco train")]
    less = ["--set", "roles.executor.max_tokens=8", "--set", "validation.subset=2"]
    less += ["--set", "update.epochs=2", "--set", "update.batch_size=4"]
    less += ["--set", "verdict_examples=2", "--json"]
    done = pco(*shlex.split(line)[1:], *less, cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["ended"] == "finished"


# Nothing is sent but to what the user names: the extras that need weights, or their own server.

SCRIPTS: dict[str, str] = tomllib.loads(
    (Path(__file__).parent / "outbound.toml").read_text("utf-8")
)["extras"]


@pytest.mark.parametrize("extra", SCRIPTS)
def test_nothing_is_sent_that_the_user_did_not_name(extra: str, tmp_path: Path) -> None:
    seen = watched(tmp_path, sys.executable, "-c", SCRIPTS[extra], OMP_NUM_THREADS="1")
    assert seen.code == 0, seen.err[-4000:]
    assert (seen.hosts, seen.packets) == ((), {})
    unasked = [name for name in seen.files if not name.startswith(OWN)]
    assert not unasked, "nothing marks this user in the home folder"


def test_every_extra_is_watched() -> None:
    assert set(SCRIPTS) == ELSEWHERE
