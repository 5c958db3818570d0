"""What is learned about an agent's tools, and whole runs of agents of several calls."""

import itertools
import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import promptcodebook as pco
from bench.kill import progress_of
from promptcodebook.calls import Message, Reply, Request, request_key
from promptcodebook.deploy.http.completions import apart, describe
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.critic import nearest_instinct
from promptcodebook.types import Codebook, Instinct, Prompt
from tests.build import topics
from tests.build.agents import SCRIPT, SYSTEM, act, answer, in_process, texts, turns
from tests.build.cli import pco as typed
from tests.build.policy import file_of
from tests.build.topics import PHRASES, PROMPT, data, obey, right

AS_IS = "Call it as its description says."
RULE = "Send the number of the order."
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def tool(name: str, description: str = "") -> dict[str, Any]:
    own = {"name": name, "description": description, "parameters": SCHEMA}
    return {"type": "function", "function": own if description else {**own, "strict": True}}


def sent(lm: ScriptedLM, at: int = -1) -> list[Any]:
    tools: Any = lm.history[at].sampling.extra["tools"]
    return tools


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_what_belongs_to_a_tool_goes_to_the_end_of_its_description(wire: str) -> None:
    asked = [tool("book", "Books a seat."), tool("ask"), {"type": "custom", "custom": {"a": 1}}]

    async def newer(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        flat: Any = [{"type": "function", **asked[0]["function"], "strict": None}]
        made = await client.responses.create(
            model="m", instructions="{{pco}}", input="Where?", tools=flat
        )
        return made.output_text

    lm = ScriptedLM().enqueue("P")
    run = act("{{pco}} Go on.", tools=asked) if wire == "chat" else newer
    prompt = "Be kind.\ntool:book: Name the day.\ntool:none: Nothing.\ntool:book: Be quick."
    output = await answer(in_process(run), lm, prompt)
    assert texts(lm)[0] in ("Be kind. Go on.", "Be kind.")
    whole = "Books a seat.\n\nName the day. Be quick."
    assert sent(lm)[0]["function"] == {**asked[0]["function"], "description": whole}
    assert sent(lm)[1:] == (asked[1:] if wire == "chat" else [])
    assert output.trace[0].input.startswith(f"tool book: {whole}\n")


async def test_without_such_a_line_tools_pass_as_they_came() -> None:
    lm, asked = ScriptedLM().enqueue("P"), [tool("book", "Books a seat.")]
    output = await answer(in_process(act("{{pco}}", tools=asked)), lm, "Use the tool: book.")
    assert sent(lm) == asked and texts(lm)[0] == "Use the tool: book."
    assert output.trace[0].input == "user: Where is my parcel?"
    for odd in (None, "x", [1, {}], [{"function": 1}], [{"function": {"name": [1]}}]):
        assert describe(odd, {"book": "Be quick."}) == odd


async def test_what_belongs_to_a_stage_is_in_its_prompt_alone() -> None:
    async def both(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        await act("{{pco:plan}}")(client, example)
        return await act("{{pco:solve}}", tools=[tool("book", "Books.")])(client, example)

    lines = "Be kind.\nstage:plan: Think.\nstage:solve: Do it.\ntool:book: Name the day."
    lm = ScriptedLM().reply_with(lambda request: "P")
    prompts = Prompt.of_stages({"plan": lines, "solve": lines})
    await answer(in_process(both, present={"plan": "", "solve": ""}), lm, prompts)
    assert [texts(lm, at)[0] for at in (0, 1)] == ["Be kind.\nThink.", "Be kind.\nDo it."]
    assert sent(lm)[0]["function"]["description"] == "Books.\n\nName the day."
    assert apart(lines)[0] == "Be kind."


# An agent that looks an order up, and a model that calls its tool well only if that says how.


async def shop(url: str, key: str, example: pco.Example) -> str:
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
        made = await client.chat.completions.create(
            model="m",
            messages=turns("{{pco}} You work for a shop.", example.input),
            tools=[tool("look_up", "Looks an order up."), tool("mail", "Sends a mail.")],  # type: ignore[list-item]
        )
    calls = made.choices[0].message.tool_calls or []
    return "".join(f"{call.function.name}: {call.function.arguments}" for call in calls)  # type: ignore[union-attr]


def reward(example: pco.Example, output: str) -> pco.Score:
    right = output == "look_up: order"
    return pco.Score(float(right), "" if right else "look_up was not given the order")


def model(request: Request) -> Reply | str:
    """Every role: the executor obeys a tool's description, and its prompt in nothing."""
    system = "\n".join(m.content for m in request.messages if m.role == "system")
    if request.role == "executor":
        tools: Any = request.sampling.extra["tools"]
        told = RULE in tools[0]["function"]["description"]
        call = {"name": "look_up", "arguments": "order" if told else "words"}
        return Reply("", tool_calls=({"id": "c", "type": "function", "function": call},))
    if request.role == "critic":
        shown = texts_of(request.messages)
        assert ("tool look_up: Looks an order up." in shown) == ("tool:look_up: " in shown)
        return json.dumps({"score": 0.1, "feedback": "look_up needs the number of the order"})
    if request.role == "attribution":
        active = texts_of(request.messages).partition("Active instincts:")[2]
        place = next((k for k in range(4) if f"[{k}] tool:look_up: " in active), None)
        errors = {} if place is None else {str(place): "Say to send the number."}
        rated = {"rendering": 0, "instinct": 0.9, "routing": 0}
        return json.dumps({"instinct_errors": errors, "severity": rated})
    if request.role == "updater":
        assert "for the tool look_up alone" in texts_of(request.messages)
        return f"**{RULE}**" if "tool:mail: " in texts_of(request.messages) else system
    return "Be kind."


def texts_of(messages: tuple[Message, ...]) -> str:
    return "\n".join(m.content for m in messages)


def settings(**more: Any) -> dict[str, Any]:
    return {
        "preset": "lean",
        "size": 4,
        "select": 4,
        "critic": {"stages": 2},
        "init": {"instincts": ("Be kind.", "Be brief.")},
        "update": {"epochs": 1, "batch_size": 16},
        "verdict_examples": 24,
        **more,
    }


def learn(place: Path, lm: ScriptedLM, agent: Any = None, **more: Any) -> pco.Run:
    agent, config = agent or pco.Agent(function=shop), settings(**more)
    return topics.learn(place, reward, lm, config=config, executor=agent)


@pytest.mark.slow
def test_the_estimate_counts_the_row_without_what_tools_learned() -> None:
    def calls(**more: Any) -> float:
        agent, config = pco.Agent(function=shop), settings(**more)
        made = pco.estimate(data(), reward, "simulated", config=config, executor=agent)
        return next(share.calls.expected for share in made.roles if share.role == "executor")

    assert calls(learn=["prompt", "tools"]) == calls() + 24


@pytest.mark.slow
@pytest.mark.parametrize("compose", ["verbatim", "generator"])
def test_a_tool_s_description_is_learned_and_has_a_row_of_its_own(
    tmp_path: Path, compose: str
) -> None:
    lm = ScriptedLM().reply_with(model)
    run = learn(tmp_path, lm, learn=["prompt", "tools"], compose=compose)
    assert set(run.codebook.texts[2:]) == {f"tool:look_up: {RULE}", f"tool:mail: {AS_IS}"}
    assert run.rows["learned"].score.mean == 1.0
    without = run.rows["without_tools"]
    assert without.reference and without.score.mean == 0.0
    asked = [r for r in lm.history if r.role == "executor"]
    assert not any("tool:" in m.content for r in asked for m in r.messages)
    untouched = [tool("look_up", "Looks an order up."), tool("mail", "Sends a mail.")]
    assert [t["function"]["parameters"] for t in sent(lm)] == [SCHEMA, SCHEMA]
    assert untouched in [r.sampling.extra["tools"] for r in asked], "the present prompt's row"


def test_tools_stay_as_they_are_unless_they_are_to_be_learned(tmp_path: Path) -> None:
    lm = ScriptedLM().reply_with(lambda r: "x" if r.role == "updater" else model(r))
    run = learn(tmp_path, lm, verdict_examples=4)
    assert "without_tools" not in run.rows
    assert not any(text.startswith("tool:") for text in run.codebook.texts)
    sent = [r.sampling.extra["tools"] for r in lm.history if r.role == "executor"]
    assert all(tools == sent[0] for tools in sent)


@pytest.mark.slow
def test_where_only_tools_are_learned_the_prompt_s_instincts_are_frozen(tmp_path: Path) -> None:
    run = learn(tmp_path, ScriptedLM().reply_with(model), learn=["tools"])
    book = run.policy.codebook
    assert [each.frozen for each in book.instincts] == [True, True, False, False]


def test_tools_that_cannot_be_learned_are_an_error_before_anything_is_paid_for(
    tmp_path: Path,
) -> None:
    async def bare(client: openai.AsyncOpenAI, example: pco.Example) -> str:
        return await act("{{pco}}", example.input)(client, example)

    lm = ScriptedLM()
    with pytest.raises(ConfigError, match="named a tool"):
        learn(tmp_path, lm, in_process(bare), learn=["prompt", "tools"])
    with pytest.raises(ConfigError, match="cannot hold 2 instincts and 2 tools") as error:
        learn(tmp_path, lm, learn=["prompt", "tools"], size=3, select=3)
    assert error.value.hint == "set size = 4" and not lm.history


def test_advice_without_a_place_goes_to_the_prompt() -> None:
    texts = (f"tool:book: {AS_IS}", "Be kind to everybody, and be as brief as the matter allows.")
    book = Codebook(tuple(map(Instinct, texts)))
    assert nearest_instinct("Sort the list by date.", book, (0, 1)) == 1
    assert nearest_instinct("The description says nothing of its calls.", book, (0, 1)) == 0


# Runs that train an agent: typed on the command line, resumed after a kill, and not trusted.

AGENT = shlex.join([sys.executable, str(SCRIPT), "twice"])
SETTINGS = """
preset = "small"
lm = "simulated"
reward = {{ kind = "contains" }}
size = 3
verdict_examples = 4
cache = false
init = {{ kind = "expert", instincts = ["Say R.", "Say P.", "Be kind."] }}
[update]
epochs = {epochs}
batch_size = 4
[data]
path = "rows.csv"
input = "text"
target = "letter"
"""


LARGE = f"data:image/png;base64,{b64encode(random.Random(0).randbytes(75_000)).decode()}"
PICTURE: Any = {"type": "image_url", "image_url": {"url": LARGE, "detail": "low"}}


async def ask(url: str, key: str, content: Any, **fields: Any) -> str:
    """By a client that loads no certificates, which takes longer than all the rest."""
    plain = httpx.AsyncClient(verify=False)
    async with openai.AsyncOpenAI(base_url=url, api_key=key, http_client=plain) as client:
        made = await client.chat.completions.create(
            model="m",
            messages=[
                {"role": "system", "content": f"You work for a shop.\n{PROMPT}"},
                {"role": "user", "content": content},
            ],
            **fields,
        )
    return made.choices[0].message.content or ""


async def shop_of(url: str, key: str, example: pco.Example) -> str:
    """An agent of two calls, the second of which checks the first."""
    reply = await ask(url, key, example.input)
    return await ask(url, key, f"{example.input} {reply}")


async def looks(url: str, key: str, example: pco.Example) -> str:
    """An agent that shows its model a picture."""
    return await ask(url, key, [{"type": "text", "text": example.input}, PICTURE])


def train_shop(runs: Path, lm: Any, agent: Any = shop_of, epochs: int = 6, **more: Any) -> pco.Run:
    config = {"update": {"epochs": epochs}, "verdict_examples": 20}
    executor = pco.Agent(function=agent, present=PROMPT)
    return topics.learn(runs, lm=lm, config=config, executor=executor, **more)


@pytest.mark.slow
def test_an_image_arrives_unchanged_is_journaled_once_and_a_run_with_it_resumes(
    tmp_path: Path,
) -> None:
    asked, again = (ScriptedLM().reply_with(obey) for _ in range(2))
    whole = train_shop(tmp_path / "whole", asked, looks, 2)
    cut = train_shop(tmp_path / "cut", again, looks, 2, budget="90calls")
    assert cut.ended == "budget" and 0 < len(again.history) < len(asked.history)
    resumed = train_shop(tmp_path / "cut", again, looks, 2, budget="100000calls", resume=cut.id)
    keys = {request_key(request) for request in again.history}
    assert len(keys) == len(again.history), "no reply was asked for twice"
    files = [(run.path / "policy.json").read_bytes() for run in (whole, resumed)]
    assert files[0] == files[1]
    seen = [turns.messages[-1] for turns in again.history if turns.role == "executor"]
    assert seen and all(message.media == [PICTURE] for message in seen)
    with closing(sqlite3.connect(resumed.path / "run.sqlite")) as db:
        [rows] = db.execute("SELECT count(*) FROM journal").fetchone()
    assert rows == len(again.history), "a row for each request"
    kept = sum(file.stat().st_size for file in resumed.path.iterdir())
    assert kept < 5 * len(LARGE), "none of the rows holds the picture"


@pytest.mark.slow
def test_a_run_of_an_agent_that_never_asks_the_same_twice_resumes_and_pays_for_what_it_asks(
    tmp_path: Path,
) -> None:
    counter = itertools.count()

    async def restless(url: str, key: str, example: pco.Example) -> str:
        return await ask(url, key, f"{example.input} [{next(counter)}]")

    lm = ScriptedLM().reply_with(obey)
    cut = train_shop(tmp_path, lm, restless, 2, budget="90calls")
    assert cut.ended == "budget" and len(lm.history) <= 90
    resumed = train_shop(tmp_path, lm, restless, 2, budget="100000calls", resume=cut.id)
    assert resumed.ended == "finished"
    assert resumed.usage["executor"].calls == len(lm.history), "each paid call is counted once"


def test_an_agents_policy_is_served_with_what_its_run_asked_and_not_with_what_it_asked(
    tmp_path: Path,
) -> None:
    """What was measured is what the run sent; a server sends the same where no caller says more."""

    async def warm(url: str, key: str, example: pco.Example) -> str:
        return await ask(url, key, example.input, temperature=0.9, max_tokens=900)

    lm = ScriptedLM().reply_with(obey)
    made = train_shop(tmp_path, lm, warm, 1, roles={"executor": {"max_tokens": 12}})
    sent = {(r.sampling.temperature, r.sampling.max_tokens) for r in lm.history[-1:]}
    assert lm.history[-1].role == "executor" and sent == {(0.0, 12)}
    assert made.policy.answer_fields == {"temperature": 0.0, "max_tokens": 12}


def test_a_prompt_that_is_found_nowhere_costs_nothing(tmp_path: Path) -> None:
    asked = list[Request]()
    lm = ScriptedLM().reply_with(lambda request: asked.append(request) or "R")  # type: ignore[func-returns-value]
    config = {"preset": "small", "size": 2, "init": {"instincts": ("Say R.", "Say P.")}}
    agent = pco.Agent(function=shop_of, present="Another prompt.")
    with pytest.raises(ConfigError, match="the prompt is missing from the agent's calls"):
        pco.optimize(
            data(), right, lm, config=config, executor=agent, runs_dir=tmp_path, progress=False
        )
    assert not asked


def folder_of(place: Path, epochs: int = 2) -> Path:
    rows = [f"{phrase} {n},{letter}" for letter, phrases in PHRASES.items() for phrase in phrases
            for n in range(2)]  # fmt: skip
    place.mkdir(exist_ok=True)
    (place / "rows.csv").write_text("\n".join(["text,letter", *rows]), "utf-8")
    (place / "pco.toml").write_text(SETTINGS.format(epochs=epochs), "utf-8")
    (place / "prompt.txt").write_text(SYSTEM, "utf-8")
    return place


TYPED = ("--agent", AGENT, "--present", "prompt.txt")
TRAIN = [sys.executable, "-m", "promptcodebook.cli", "train", *TYPED, "--json"]
MOMENTS = int(os.environ.get("PCO_TEST_MOMENTS", "3"))


@pytest.mark.slow
def test_an_agent_is_typed_and_its_command_runs_only_with_trust(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "shop")
    made = typed("train", *TYPED, "--json", cwd=place)
    assert made.code == 0, made.err
    assert made.json["ended"] == "finished"
    shown = typed("runs", "show", "last", "--json", cwd=place).json
    executor = shown["usage"]["executor"]
    assert executor["calls"] >= 8, "two calls for each rollout"
    [run] = (place / "runs").iterdir()
    other = folder_of(tmp_path / "other")
    run.rename(other / run.name)
    (other / "runs").mkdir()
    (other / run.name).rename(other / "runs" / run.name)
    assert typed("eval", "last", "--n", "2", cwd=other).code == 0
    secret = next(Path(os.environ["HOME"]).rglob("*secret*"), None)
    if secret is not None:
        secret.unlink()
        typed("eval", "last", "--n", "2", cwd=other).error(2, "is not marked as yours", "run ")


def test_the_doctor_says_whether_the_prompt_has_a_place(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "shop")
    found = typed("doctor", *TYPED, "--json", cwd=place)
    assert "found where its prompt goes" in found.out
    (place / "prompt.txt").write_text("Another prompt.", "utf-8")
    found = typed("doctor", *TYPED, "--json", cwd=place)
    assert found.code == 1 and "the prompt is missing from the agent's calls" in found.out


def test_a_batch_runs_the_agent_of_a_policy(tmp_path: Path) -> None:
    place = folder_of(tmp_path / "shop")
    file_of("Agent", column="text", compose="verbatim", encoder={"mode": "none"}).save(
        place / "p.json"
    )
    (place / "in.csv").write_text("text\nhello\nbye\n", "utf-8")
    asked = ("batch", "p.json", "in.csv", "out.csv")
    typed(*asked, cwd=place).error(2, "judged with the program 'Agent'", "--agent COMMAND")
    told = typed(*asked, "--agent", AGENT, "--prompt", "prompt.txt", "--json", cwd=place)
    assert told.code == 0, told.err
    assert told.json["rows"] == 2 and told.json["calls"] >= 4, "two calls for each row"


@pytest.mark.slow
def test_a_killed_run_of_an_agent_ends_as_the_whole_one(tmp_path: Path) -> None:
    """Byte-equal policies, as many calls that were paid for, wherever the kill falls."""
    whole = folder_of(tmp_path / "whole", 3)
    subprocess.run(TRAIN, cwd=whole, check=True, capture_output=True, timeout=600)
    replies = progress_of(whole).journal
    for moment in range(MOMENTS):
        cut, least = folder_of(tmp_path / f"cut{moment}", 3), replies * moment / (MOMENTS + 1)
        with subprocess.Popen(TRAIN, cwd=cut, stdout=-3, stderr=-3, start_new_session=True) as run:
            while not ((now := progress_of(cut)).began and now.journal >= least):
                assert run.poll() is None, "it was too quick"
                time.sleep(0.01)
            os.killpg(run.pid, signal.SIGKILL)
        again = [*TRAIN, "--resume", "last"]
        subprocess.run(again, cwd=cut, check=True, capture_output=True, timeout=600)
        runs = [next((place / "runs").iterdir()) for place in (whole, cut)]
        assert len({(run / "policy.json").read_bytes() for run in runs}) == 1
        paid = [
            typed("runs", "show", "last", "--json", cwd=place).json["usage"]["executor"]["calls"]
            for place in (whole, cut)
        ]
        assert paid[0] == paid[1], moment
