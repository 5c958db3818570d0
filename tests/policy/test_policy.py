"""A policy at work: prompts, answers and explanations, and the prompts that it was judged by."""

import asyncio
import hashlib
import json
import random
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

import promptcodebook as pco
from promptcodebook.assemble import Sources
from promptcodebook.calls import Chat
from promptcodebook.config import role_layers
from promptcodebook.errors import ConfigError, DataError, EndpointDown, PolicyError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import Explanation, Policy, deploy, load_policy, prompt_spans
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.program import SINGLE_CALL
from promptcodebook.types import Example, Route
from tests.build.cases import table
from tests.build.cli import served
from tests.build.method import book, saying, talkative
from tests.build.policy import RANKING, file_of
from tests.build.server import Server, says


def policy_of(
    file: PolicyFile, reply: Any = talkative, executor: Any = None, **above: Any
) -> tuple[Policy, ScriptedLM]:
    lm = reply if isinstance(reply, ScriptedLM) else ScriptedLM().reply_with(reply)
    settings = file.settings(above={"lm": "own", **above})
    return deploy(file, settings, Sources(lm=lm, executor=executor)), lm


async def one(prompt: str, example: Example, lm: Chat) -> str:
    return prompt


# --- answers ---


def test_prompt_answer_and_explanation_are_of_one_policy() -> None:
    policy, lm = policy_of(file_of(), saying("executor", "the answer"))
    answer = policy.respond("How far?")
    assert answer.usage.calls == len({r.role for r in lm.history}) == 3
    assert answer.text == str(answer) == policy.answer("How far?") == "the answer"
    explained = policy.explain("How far?")
    assert explained.prompt == policy.prompt("How far?") == answer.prompt
    assert answer.route == explained.route and answer.prompt in answer._repr_html_()
    assert explained.route.indices == (0, 1) and explained.route.analysis == "a"
    assert explained.instincts == ((0, "rule zero"), (1, "rule one"))
    assert explained.scores is None and explained.ranked == ()
    asked = next(request for request in lm.history if request.role == "executor")
    assert explained.prompt in "".join(message.content for message in asked.messages)
    assert asked.greedy
    assert repr(policy) == "Policy(K=4, S=2, lm='own')" and policy.codebook == book()


# --- inputs ---


@pytest.mark.parametrize(("column", "columns", "text"), table(__file__, "mappings"))
def test_a_mapping_is_read_as_the_training_data_was(
    column: str, columns: Mapping[str, object], text: str
) -> None:
    policy, lm = policy_of(file_of(column=column))
    by_columns = policy.explain(columns)
    asked = list(lm.history)
    assert by_columns.input == text
    assert policy.explain(text) == by_columns
    assert lm.history[len(asked) :] == asked, "the same requests, samples and all"


@pytest.mark.parametrize(("column", "given", "message", "hint"), [
    ("question", {"questoin": "x"}, "no column 'question', but has 'questoin'",
     "the policy reads 'question'"),
    ("{question}: {a}", {"a": "x"}, "no column 'question'\nnext", "reads '{question}: {a}'"),
    ("question", {"question": None}, "'question' is null", "reads 'question'"),
    ("question", b"bytes", "^an input is a string, a mapping", "prompt({'column': '...'})"),
])  # fmt: skip
def test_what_is_no_input_is_named(column: str, given: Any, message: str, hint: str) -> None:
    policy, _ = policy_of(file_of(column=column))
    with pytest.raises(DataError, match=message) as error:
        policy.prompt(given)
    assert hint in error.value.hint


def test_an_example_keeps_its_id_and_its_fields() -> None:
    """Another id is another draw; a text's id follows from the text."""

    async def agent(prompt: str, example: Example, lm: Chat) -> str:
        return f"{example.id}|{sorted(example.fields.items())}|{example.input}"

    sampling = {"encoder": {"temperature": 0.5}}
    policy, lm = policy_of(file_of(), executor=agent, roles=sampling)
    assert policy.answer(Example("x7", "How far?", fields={"unit": "km"})) == (
        "x7|[('unit', 'km')]|How far?"
    )
    drawn = {r.sample for r in lm.history if r.role == "encoder"}
    lm.history.clear()
    assert policy.answer({"question": "How far?", "unit": "km"}).endswith(
        "|[('question', 'How far?'), ('unit', 'km')]|How far?"
    )
    assert not drawn & {r.sample for r in lm.history if r.role == "encoder"}
    assert policy.answer("half \ud800 a pair").split("|")[0] != policy.answer("a").split("|")[0]


# --- answers and explanations ---


def test_a_failed_pass_is_raised_with_its_stage() -> None:
    down = EndpointDown("refused", hint="start it")
    policy, _ = policy_of(file_of(), saying("executor", down))
    with pytest.raises(PolicyError, match=r"^no answer: EndpointDown at execute: refused"):
        policy.answer("How far?")


def test_a_policy_judged_with_a_program_needs_it_to_answer_and_not_to_prompt() -> None:
    policy, _ = policy_of(file_of(program="my_agent"))
    assert policy.prompt("How far?")
    with pytest.raises(PolicyError, match="judged with the program 'my_agent', which is missing"):
        policy.answer("How far?")
    for program in ("", SINGLE_CALL):
        assert policy_of(file_of(program=program))[0].answer("How far?") == "0.5"
    assert policy_of(file_of(program="another"), executor=one)[0].answer("x") == "Follow the rules."


def test_a_ranked_policy_asks_nobody_and_shows_its_router_s_scores() -> None:
    policy, lm = policy_of(file_of(ranking=RANKING, select=2), reward_range=(-1.0, 3.0))
    explained = policy.explain("How far?")
    assert [request.role for request in lm.history] == ["generator"]
    assert explained.route.indices == (1, 3)
    scores = explained.scores
    assert scores is not None and scores.nothing == RANKING.bias[0]
    assert scores.marginal == RANKING.bias[1:] and scores.more == RANKING.more
    assert [k for k, _ in explained.ranked] == [1, 3, None, 0, 2]
    html = explained._repr_html_()
    assert "scores" in html and "expected" not in html and "none" in html
    assert heads(html) == ["k", "instinct", "k", "alone", "source", "piece"]
    distilled, _ = policy_of(file_of(ranking=replace(RANKING, kind="distilled", least=2)))
    assert distilled.explain("How far?").scores is None


def heads(html: str) -> list[str]:
    """What stands over the columns of its tables."""
    return re.findall(r"<th\b[^>]*>(.*?)</th>", html)


def test_an_explanation_shows_doubt_and_reasons_where_there_are_any() -> None:
    plain = Explanation("x", Route((0, 2)), ((0, "a"), (2, "b")), "p")._repr_html_()
    assert "<caption>route: 0, 2</caption>" in plain and heads(plain) == ["k", "instinct"]
    assert "fallback" not in plain and "why" not in plain
    doubted = Explanation("x", Route((0,), fault="no JSON", analysis="so"), ((0, "a"),), "p")
    assert "route: 0 (fallback: no JSON)" in doubted._repr_html_() and "so" in doubted._repr_html_()


# --- loading ---


def saved(tmp_path: Path, program: str = "") -> Path:
    file_of(program).save(tmp_path / "p.json")
    return tmp_path / "p.json"


def test_the_model_is_the_one_given_else_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    with pytest.raises(ConfigError, match="names no model, and none was given") as error:
        load_policy(path)
    assert "PCO_LM" in error.value.hint
    monkeypatch.setenv("PCO_LM", "http://localhost:9/v1#env")
    assert repr(load_policy(path)) == "Policy(K=4, S=2, lm='http://localhost:9/v1#env')"
    assert "given" in repr(load_policy(path, lm="http://localhost:9/v1#given"))


def test_a_file_that_is_not_there_is_named_before_a_model_is_asked_for(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(PolicyError, match=r"no policy file at .*/q.json \(did you mean 'p.json'"):
        load_policy(tmp_path / "q.json")


def test_a_prompt_that_takes_no_call_needs_no_model(tmp_path: Path) -> None:
    file_of(ranking=RANKING, compose="verbatim").save(tmp_path / "p.json")
    policy = load_policy(tmp_path / "p.json")
    assert policy.prompt("Is it late?") and policy.explain("Is it late?").prompt
    with pytest.raises(PolicyError, match="names no model, and none was given"):
        policy.answer("Is it late?")


async def test_a_loaded_policy_asks_anew_each_time(tmp_path: Path) -> None:
    """No reply is kept for another time: whoever deploys it decides on that."""
    server = Server()
    await server.start()
    server.default = says('{"selected_indices": [0, 1]}')
    async with load_policy(saved(tmp_path), lm=server.spec) as policy:
        await policy.aprompt("x")
        first = len(server.bodies)
        await policy.aprompt("x")
    assert first > 0 and len(server.bodies) == 2 * first
    await server.stop()


def test_a_role_may_have_a_model_or_settings_of_its_own(tmp_path: Path) -> None:
    assert role_layers(None) == role_layers({}) == {}
    assert role_layers({"critic": "openai/x", "executor": {"temperature": 0.5}}) == {
        "critic": {"model": "openai/x"}, "executor": {"temperature": 0.5},
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"roles\['critic'\] is of type int"):
        load_policy(saved(tmp_path), lm="http://localhost:9/v1#m", roles={"critic": 3})
    with pytest.raises(ConfigError, match=r"temprature. in load_policy\(\)"):
        load_policy(saved(tmp_path), "http://localhost:9/v1#m", {"executor": {"temprature": 1}})


class Agent:
    async def run(self, prompt: str, example: Example, lm: Chat) -> str:
        return prompt


@pytest.mark.parametrize(("executor", "judged_with", "warned"), [
    (one, "", False),
    (one, "one", False),
    (one, "agent.py:one", False),
    (one, "agent.py:other", True),
    (Agent().run, "Agent.run", False),
    (Agent().run, "agents.py:run", False),
    (Agent().run, "Other.run", True),
])  # fmt: skip
def test_another_program_than_the_judged_one_is_warned_of(
    tmp_path: Path, executor: Any, judged_with: str, warned: bool
) -> None:
    """The command names a function with its file, Python with its module."""
    path = saved(tmp_path, judged_with)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        policy = load_policy(path, lm="http://localhost:9/v1#m", executor=executor)
        load_policy(path, lm="http://localhost:9/v1#m")
    assert policy.program == executor.__qualname__ and len(caught) == warned
    for each in caught:  # the warning names the file that loads it
        text = f"the policy was judged with the program {judged_with!r}"
        assert str(each.message).startswith(text) and each.filename == __file__


@pytest.mark.parametrize("named", ["train", "path", ""])
async def test_the_world_of_a_simulated_model_is_made_of_the_data_that_are_named(
    tmp_path: Path, named: str
) -> None:
    """Whether by a folder or a file of everything, or by the training split alone."""
    rows = [{"question": f"Which mark has item {n}?", "target": f"mark-{n}"} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    data = {"input": "question", "target": "target"}
    data |= {named: str(tmp_path / "rows.jsonl")} if named else {}
    settings = file_of().settings(above={"lm": "simulated", "data": data})
    async with deploy(file_of(), settings, Sources()) as policy:
        answers = [await policy.aanswer(row["question"]) for row in rows]
    known = sum(row["target"] in answer for row, answer in zip(rows, answers, strict=True))
    assert (known > 0) == bool(named)


# --- Which instinct a part of a prompt comes from: exact where it can be, a likeness elsewhere ---


COUNT = "Count the words of your answer before you send it."
CITE = "Cite the paragraph of the policy that decides the case."
POLITE = "Stay polite, also with angry customers."
CHOSEN = ((2, COUNT), (5, CITE), (9, POLITE))
SHORT, RHYMED = "Answer every question shortly", "Answer every question in rhymes"


@pytest.mark.parametrize(("prompt", "chosen", "labels"), [
    (f"You work for a shop.\n\n{COUNT}\n{CITE}\n{POLITE}\n\nAnswer in JSON.", CHOSEN,
     ["base", "c2", "c5", "c9", "format"]),
    ("You are a clerk of the returns desk. Always cite the deciding paragraph of our policy, "
     "stay polite with every customer; and counting the words of the answer comes last.",
     CHOSEN, ["generator", "~c5", "~c9", "~c2"]),
    # Words that all instincts have say nothing of any, and one shared word is a coincidence.
    (f"Answer every question. {RHYMED}.", ((0, SHORT), (1, RHYMED)), ["generator", "c1"]),
    ("Please take great care of yourself.", ((0, SHORT), (1, RHYMED)), ["generator"]),
    ("The customers wait.", CHOSEN, ["generator"]),
    # An instinct within another is not found inside it.
    ("Cite the law and the date\nCite the law",
     ((0, "Cite the law"), (1, "Cite the law and the date")), ["c1", "c0"]),
    # Scripts without blanks are compared by pairs of letters.
    ("请务必引用政策的段落。先数一数回答的字数。",
     ((0, "回答前请先数一数字数"), (1, "请引用政策中的段落")), ["~c1", "~c0"]),
    # Every stage may begin with the base prompt.
    (f"draft: You work for a shop.\n\n{COUNT}\n\ncheck: You work for a shop.\n\n{CITE}",
     CHOSEN, ["generator", "base", "c2", "generator", "base", "c5"]),
    ("", CHOSEN, []),
    ("You work for a shop.", (), ["base"]),
    ("no b " * 5000, ((0, "no"),), ["c0", "generator"] * 5000),
])  # fmt: skip
def test_a_piece_of_a_prompt_has_its_source_exact_where_it_can_be(
    prompt: str, chosen: tuple[tuple[int, str], ...], labels: list[str]
) -> None:
    spans = prompt_spans(prompt, chosen, "You work for a shop.", "Answer in JSON.")
    assert [span.label for span in spans] == labels
    assert "".join(span.text for span in spans) == prompt


@pytest.mark.parametrize("base", ["", "a", " \n "])
@given(
    prompt=st.text(alphabet="ab ,.\n—é字", max_size=40),
    texts=st.lists(st.text(alphabet="ab ,.é字", max_size=8), max_size=3),
)
def test_the_pieces_are_the_prompt_again(base: str, prompt: str, texts: list[str]) -> None:
    spans = prompt_spans(prompt, tuple(enumerate(texts)), base, "b.")
    assert "".join(span.text for span in spans) == prompt
    assert all((span.instinct is None) == (span.source != "instinct") for span in spans)


# --- One policy asked from many threads, over real connections ---


PROMPT = "Do as the rules say."


async def routes_and_composes(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(0.02)
    reply = '{"selected_indices": [0, 1]}' if "response_format" in body else PROMPT
    return await says(reply)(request, body)


async def test_one_policy_answers_many_threads(tmp_path: Path) -> None:
    server = Server()
    await server.start()
    server.default = routes_and_composes
    policy = load_policy(saved(tmp_path), lm=server.spec)

    def ask(number: int) -> list[str]:
        return [policy.prompt(f"question {number}.{n}") for n in range(3)]

    answers = await asyncio.wait_for(
        asyncio.gather(*(asyncio.to_thread(ask, n) for n in range(6))), 30
    )
    assert answers == [[PROMPT] * 3] * 6
    assert not [t for t in threading.enumerate() if t.name == "promptcodebook"]
    await server.stop()


async def test_within_with_calls_share_connections_till_its_end(tmp_path: Path) -> None:
    server, peers = Server(), set[object]()

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        return await routes_and_composes(request, body)

    server.default = step
    await server.start()

    def ask() -> None:
        policy = load_policy(saved(tmp_path), lm=server.spec)
        with policy as same, policy:  # once inside is enough
            assert same is policy
            for n in range(4):
                assert policy.prompt(f"a {n}") == PROMPT
            assert policy.explain("b").prompt == PROMPT
        assert len(peers) == 1
        policy.prompt("it works on, by a connection of its own")
        with pytest.raises(ZeroDivisionError), policy:
            raise ZeroDivisionError

    earlier = set(threading.enumerate())
    await asyncio.to_thread(ask)
    assert len(peers) == 2
    left = set(threading.enumerate()) - earlier
    assert not [t for t in left if t.name == "promptcodebook"]
    await server.stop()


# The deployed policy is the judged one: the same prompts, in another process, from its file alone.

SIZE = 6

LOADED = """
import json, sys, warnings
import promptcodebook as pco
warnings.simplefilter("error")
for line in sys.stdin:
    path, spec, inputs = json.loads(line)
    policy = pco.load_policy(path, lm=spec)
    print(json.dumps([policy.prompt(pco.Example(i, x)) for i, x in inputs]), flush=True)
"""


def decided(select: int):
    """Replies that follow from the whole body; S valid indices where a route is asked for."""

    async def step(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        return await says(_reply(key, body, select))(request, body)

    return step


def _reply(key: str, body: dict[str, Any], select: int) -> str:
    name = body.get("response_format", {}).get("json_schema", {}).get("name", "")
    draw = random.Random(key)
    match name:
        case "RouteReply":
            return json.dumps({"selected_indices": draw.sample(range(SIZE), select)})
        case "":
            return f"Text {key[:16]}, as asked."
        case _:
            blame = {"rendering_errors": "", "routing_errors": f"mind {key[:8]}"}
            errors = {str(k): f"sharpen {key[:8]}" for k in range(SIZE)}
            return json.dumps(
                {"score": 0.5, "feedback": f"see {key[:8]}", "instinct_errors": errors, **blame}
            )


def reward(example: pco.Example, output: str) -> float:
    return random.Random(output).random() * 0.9


async def staged(prompt: pco.Prompt, example: pco.Example, lm: pco.Chat) -> str:
    draft = await lm(example.input, system=prompt.of("draft"), purpose="draft")
    return (await lm(draft.text, system=prompt.of("check"), purpose="check")).text


staged.stages = ("draft", "check")  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[subprocess.Popen[str]]:
    """Another process, which knows of a policy what its file says, and warns of nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", LOADED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


SETTINGS: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "sampling": {
        "roles": {
            "generator": {"temperature": 1.8, "max_tokens": 77, "extra": {"top_k": 7}},
            "encoder": {"temperature": 0.4, "top_p": 0.5},
        },
        "seed": 11,
    },
    "verbatim": {"compose": "verbatim", "base_prompt": "We sell lamps."},
    "texts": {"base_prompt": "We sell lamps.", "output_format": "one line", "select": 3},
    "only the instincts": {"preset": "default"},
    "paper templates": {"templates": "paper"},
    "no encoder": {"encoder": {"mode": "none"}},
    "last state": {"keep": "last"},
    "a prompt for each stage": {"compose_per_stage": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_loaded_policy_makes_the_prompts_that_were_judged(
    name: str, elsewhere: subprocess.Popen[str], tmp_path: Path
) -> None:
    settings = {"size": SIZE, "select": 2, "preset": "full", **SETTINGS[name]}
    rows = [{"input": f"Question {n} of lamps?", "target": "light"} for n in range(24)]
    server = Server()
    server.default = decided(settings["select"])
    with served(server):
        run = pco.optimize(
            data := pco.load(rows),
            reward,
            lm=server.spec,
            executor=staged if name == "a prompt for each stage" else None,
            config={
                **settings,
                "update": {"epochs": 2, "batch_size": 4},
                "validation": {"every": 1, "subset": 4},
                "cache": False,
            },
            runs_dir=tmp_path / "runs",
        )
        run.policy.save(path := tmp_path / "policy.json")
        with closing(RunStore.open(run.path)) as store:
            learned = next(e for e in store.test_evaluations() if e.name == "learned")
        judged = {r.example_id: r.prompt for r in learned.rollouts}
        inputs = [(example.id, example.input) for example in data.test]
        assert elsewhere.stdin is not None and elsewhere.stdout is not None
        elsewhere.stdin.write(json.dumps([str(path), server.spec, inputs]) + "\n")
        elsewhere.stdin.flush()
        line = elsewhere.stdout.readline()
    assert line, "it ended with an error, which is above"
    assert dict(zip((i for i, _ in inputs), json.loads(line), strict=True)) == judged
    assert len(set(judged.values())) > 1  # a constant prompt would prove nothing
