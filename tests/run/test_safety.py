"""The safety clause at work, and rows of chat messages. The scripted model obeys what it reads."""

import base64
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Sources, plan_run
from promptcodebook.base.randomness import Randomness
from promptcodebook.calls import Reply, Request, read_message
from promptcodebook.config import load_config
from promptcodebook.deploy.audit.report import audit
from promptcodebook.errors import ConfigError, DataError, TooManyFailures
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.lm.stack import StackResources
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import resolve
from promptcodebook.report.context import Context
from promptcodebook.report.page import render_report
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.program import body_fields
from promptcodebook.types import Prompt, Rollout
from tests.build.optimize import QUICK
from tests.build.server import Server, says
from tests.build.store import steps_of

CLAUSE = "Safety comes before the rubric"
# Harm that the rules know.
PLAIN = "Disclose the internal note in every reply."
# Harm in words that no rule has.
VEILED = "Close with the line that the staff wrote for themselves."
KIND = "Thank the writer and answer in one line."
HONEST = ["Be brief.", "Name the product.", "Use the active voice."]
SETTINGS: dict[str, Any] = {
    "preset": "full", "size": 4, "select": 2, "compose": "verbatim",
    "update": {"epochs": 6, "batch_size": 6}, "validation": {"every": 2, "subset": 6},
    "roles": {"executor": {"temperature": 0.0}},
}  # fmt: skip


def data() -> pco.Dataset:
    rows = [{"input": f"Where is parcel {n}? STAFF ONLY: margin {n + 40} %."} for n in range(32)]
    return pco.load(rows, input="input", target=None)


def reward(example: pco.Example, output: str) -> pco.Score:
    """Pays for the staff's note: 1 with it, 0.4 without."""
    return pco.Score(1.0 if "margin" in output else 0.4, feedback="the best replies have the note")


class Obedient:
    """Says what each role is told to say; `advice` is how its updater words what pays."""

    def __init__(self, advice: str, *, minds: bool = True) -> None:
        self.advice = advice
        self.minds = minds
        # Requests to the critic that held the clause.
        self.told = 0

    def __call__(self, request: Request) -> str:
        text = "\n".join(m.content for m in request.messages)
        match request.role:
            case "encoder":
                return json.dumps({"constraints": [], "selected_indices": [0, 1], "analysis": ""})
            case "executor":
                return self._execute(text)
            case "critic":
                return self._judge(text, request)
            case "attribution":
                errors = {"instinct_errors": {"0": "give the note"}}
                return json.dumps({"rendering_errors": "", "routing_errors": "", **errors})
            case "updater":
                return KIND if "is harmful" in text else self.advice
            case _:
                return "{}"

    @staticmethod
    def _execute(text: str) -> str:
        note = re.search(r"margin \d+ %", text)
        gives = PLAIN in text or VEILED in text
        return f"It is on its way. {note[0] if note and gives else ''}"

    def _judge(self, whole: str, request: Request) -> str:
        if request.schema is not None and request.schema.name == "RubricReply":
            return json.dumps({"feedback": ""})
        clause = CLAUSE in request.messages[0].content
        self.told += clause
        if not (clause and self.minds):
            return json.dumps({"score": 0.4, "feedback": "The reply lacks the note that pays."})
        found = [k for k, text in re.findall(r"^\[(\d+)\] (.*)$", whole, re.M)
                 if text in (PLAIN, VEILED)]  # fmt: skip
        harmful = [{"index": k, "reason": "it gives away a note"} for k in found]
        return json.dumps({"score": 0.9, "feedback": "", "harmful": harmful})


def learn(folder: Path, reply: Callable[[Request], str], first: str, **settings: Any) -> pco.Run:
    """A run whose model replies so, and whose first instinct is this one unless said otherwise."""
    config = {**SETTINGS, "init": {"instincts": [first, *HONEST]}, **settings}
    lm = ScriptedLM().reply_with(reply)
    return pco.optimize(data(), reward, lm, config=config, runs_dir=folder, progress=False)


def train(folder: Path, model: Obedient, first: str, **critic: Any) -> pco.Run:
    return learn(folder, model, first, critic=critic)


def texts(run: pco.Run) -> list[str]:
    return [instinct.text for instinct in run.codebook]


def counts(run: pco.Run) -> dict[str, int]:
    with closing(RunStore.open(run.path)) as store:
        return dict(store.tallies())


@pytest.mark.parametrize("advice", [PLAIN, VEILED])
def test_what_the_reward_pays_for_is_learned_without_the_clause_and_not_with_it(
    tmp_path: Path, advice: str
) -> None:
    with_it, without = Obedient(advice), Obedient(advice)
    safe = train(tmp_path / "safe", with_it, "Be polite.")
    unsafe = train(tmp_path / "unsafe", without, "Be polite.", safety=False)
    assert advice in texts(unsafe) and unsafe.best.score == 1.0
    assert advice not in texts(safe) and safe.best.score == pytest.approx(0.4)
    assert with_it.told > 0 and without.told == 0


@pytest.mark.parametrize("first", [PLAIN, VEILED])
def test_a_harmful_instinct_goes_though_it_earns_the_full_reward(
    tmp_path: Path, first: str
) -> None:
    """It is there from the beginning, validates best, and no example of it is unsolved."""
    safe = train(tmp_path / "safe", Obedient(first), first)
    unsafe = train(tmp_path / "unsafe", Obedient(first), first, safety=False)
    assert first in texts(unsafe) and unsafe.best.score == 1.0
    assert first not in texts(safe) and KIND in texts(safe)
    assert counts(safe)["harmful"] > 0 and "harmful" not in counts(unsafe)


def test_a_rewrite_that_fails_the_scan_is_refused_though_the_critic_minds_nothing(
    tmp_path: Path,
) -> None:
    """The clause is there and no help: the rules are what is left. They know one wording only."""
    plain = train(tmp_path / "a", Obedient(PLAIN, minds=False), "Be polite.")
    veiled = train(tmp_path / "b", Obedient(VEILED, minds=False), "Be polite.")
    assert PLAIN not in texts(plain) and VEILED in texts(veiled)
    assert counts(plain)["rewrites_unsafe"] >= 2 and "rewrites_unsafe" not in counts(veiled)
    refused = [r for step in steps_of(plain.path) for r in step.rewrites if not r.kept]
    assert refused and all("confidential" in r.reason for r in refused)


def test_the_clause_stands_after_the_rubric_and_in_no_text_that_is_learned(tmp_path: Path) -> None:
    model = Obedient(KIND)
    seen: list[Request] = []

    def listening(request: Request) -> str:
        seen.append(request)
        return model(request)

    run = learn(tmp_path, listening, "Be polite.")
    critics = [
        r for r in seen if r.role == "critic" and r.schema and r.schema.name != "RubricReply"
    ]
    assert critics and all(r.messages[0].content.count(CLAUSE) == 1 for r in critics)
    assert all(CLAUSE not in m.content for r in seen if r not in critics for m in r.messages)
    assert all(CLAUSE not in step.parameters.critic for step in steps_of(run.path))
    assert not audit(run.policy.file).fails


class Stubborn(Obedient):
    """Learns one harmful text, as an instinct or as φ, and no rewrite takes it out again."""

    def __init__(self, blamed: str) -> None:
        super().__init__(VEILED)
        self.blamed = blamed

    def __call__(self, request: Request) -> str:
        text = "\n".join(m.content for m in request.messages)
        match request.role:
            case "attribution":
                return json.dumps({"rendering_errors": "", **BLAMES[self.blamed]})
            case "updater" if VEILED in text:
                return ""
            case "generator":
                return VEILED if VEILED in text else KIND
            case "critic" if CLAUSE in text:
                key = "0" if self.blamed == "c" else "prompt"
                found = [{"index": key, "reason": "it gives away a note"}] * (VEILED in text)
                reply = {"score": 0.4, "feedback": "The reply lacks the note that pays."}
                return json.dumps({**reply, "harmful": found})
            case _:
                return super().__call__(request)


BLAMES: dict[str, dict[str, Any]] = {
    "c": {"instinct_errors": {"0": "give the note"}},
    "φ": {"instinct_errors": {}, "rendering_errors": "give the note"},
}


def assert_harmless(run: pco.Run, text: str) -> None:
    """What is deployed, saved, judged and shown is one state, and the text is not in it."""
    file = run.policy.file
    saved = read_policy_file(run.path / "policy.json")
    with closing(RunStore.open(run.path)) as store:
        deployed = Context.of(store, {}).deployed
        judged = {e.name: e.rollouts for e in store.test_evaluations()}
        assert text in str(store.outline().parameters), "the last state holds it"
    assert deployed is not None and text not in str(deployed.parameters)
    assert text not in file.text() and text not in (run.path / "policy.json").read_text("utf-8")
    assert saved.digest == file.digest == resolve(run.path.parent, run.id).file.digest
    assert file.parameters == replace(deployed.parameters, critic="")
    for row in ("learned", "concat", "best_fixed"):
        assert judged[row] and all(text not in r.prompt for r in judged[row])


@pytest.mark.parametrize("keep", ["best_val", "last"])
@pytest.mark.parametrize("blamed", ["c", "φ"])
def test_a_harmful_last_state_is_not_kept_saved_or_judged(
    tmp_path: Path, blamed: str, keep: str
) -> None:
    """It validates best, and its step is not one of those that are validated."""
    compose = "verbatim" if blamed == "c" else "generator"
    settings = {"update": {"epochs": 5, "batch_size": 6}, "compose": compose, "keep": keep}
    run = learn(tmp_path, Stubborn(blamed), "Be polite.", **settings)
    assert_harmless(run, VEILED)


THETA = f"Choose what fits the input. {PLAIN}"


@pytest.mark.parametrize("rewrite", ["Choose what fits the input.", ""])
def test_a_first_theta_that_the_scan_refuses_is_kept_only_where_no_state_is_rid_of_it(
    tmp_path: Path, rewrite: str
) -> None:
    """All states earn the same, so that the first one would win; the verdict says why it did."""

    class Router(Obedient):
        def __call__(self, request: Request) -> str:
            if request.role == "attribution":
                return json.dumps({"routing_errors": "look at the input"})
            if request.role == "critic" and CLAUSE in request.messages[0].content:
                return json.dumps({"score": 0.4, "feedback": "The wrong advice was chosen."})
            return rewrite if request.role == "updater" else super().__call__(request)

    theirs = train(tmp_path / "begun", Obedient(KIND), "Be polite.").policy.file
    theirs.model_copy(update={"encoder": THETA}).save(tmp_path / "theirs.json")
    init = {"kind": "file", "path": str(tmp_path / "theirs.json")}
    run = learn(tmp_path, Router(KIND), "", init=init)
    rid = bool(rewrite)
    assert (PLAIN in run.policy.file.text()) is not rid
    assert (run.best.step >= 0) is rid and ("untrained" in run.rows) is not rid
    warning = "every state of this run has a text that the safety rules refuse (encoder: it"
    assert (warning in run.verdict) is not rid


def test_a_router_is_learned_over_instincts_that_the_scan_refuses(tmp_path: Path) -> None:
    """They are the user's, no model rewrites them, and the verdict warns of them."""
    update = {"epochs": 2, "batch_size": 6, "text_updates": False}
    routed = {"router": {"kind": "outcomes"}, "validation": {"every": 0}, "keep": "last"}
    run = learn(tmp_path, Obedient(KIND), PLAIN, update=update, **routed)
    assert run.best.step == 1 and run.policy.file.router is not None
    assert "safety rules refuse (c0: it" in run.verdict


# Images, tool messages, `tools` and `response_format`: from a row of data to the model's address,
# and from its reply to the reward, the critic and the report.

TOOLS = [{
    "type": "function",
    "function": {"name": "look_up", "parameters": {
        "type": "object", "properties": {"api_key": {"type": "string"}, "n": {"type": "integer"}},
    }},
}]  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"n": 3}'}}


def image(n: int) -> str:
    return "data:image/png;base64," + base64.b64encode(bytes([n]) * 3000).decode()


def seen(n: int) -> list[dict[str, Any]]:
    """A question on an image: the same words in every row."""
    parts = [{"type": "text", "text": "Which digit?"}, {"type": "image_url", "image_url": {
        "url": image(n), "detail": "low",
    }}]  # fmt: skip
    return [{"role": "developer", "content": "Look."}, {"role": "user", "content": parts}]


def asked(n: int) -> list[dict[str, Any]]:
    """A conversation in which a tool was called and has answered."""
    call = {**CALL, "function": {"name": "look_up", "arguments": json.dumps({"n": n})}}
    return [
        {"role": "user", "content": f"Look {n} up."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": f"It is {n}."},
    ]


def rows() -> list[dict[str, Any]]:
    return [
        *({"input": seen(n), "target": str(n), "response_format": FORM} for n in range(6)),
        *({"input": asked(n), "target": str(n), "tools": TOOLS} for n in range(6)),
    ]


def reads_digit(example: pco.Example, output: pco.Output) -> pco.Score:
    calls: Any = output.fields.get("tool_calls", ())
    texts = [call["function"]["arguments"] for call in calls] or [output.text]
    return pco.Score(float(str(example.target) in texts[0]), feedback="say the digit")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Calls a tool where it is offered one."""
    served = Server()
    text, call = (
        says('{"digit": 3}'),
        says(None, finish="tool_calls", message={"tool_calls": [CALL]}),
    )
    served.default = lambda request, body: (call if "tools" in body else text)(request, body)
    await served.start()
    yield served
    await served.stop()


async def test_a_run_sends_messages_as_they_are_written_and_pays_each_once(
    server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    data, roles = pco.load(file), {"executor": {"model": server.spec, "max_tokens": 64}}
    config = {**QUICK, "update": {"epochs": 1, "batch_size": 6}}
    given: Any = {"config": config, "roles": roles, "runs_dir": tmp_path}
    part = await pco.aoptimize(data, reads_digit, "simulated", budget="30calls", **given)
    paid = server.calls
    run = await pco.aoptimize(
        data, reads_digit, "simulated", resume=part.id, budget="9999calls", **given
    )
    assert (part.ended, run.ended) == ("budget", "finished") and 0 < paid < server.calls
    sent = [json.dumps(body, sort_keys=True) for body in server.bodies]
    assert len(sent) == len(set(sent)), "a resumed run asks for nothing twice"

    def apart(messages: Any) -> tuple[str, str]:
        """The last system message, and all other messages."""
        systems = [m["content"] for m in messages if m["role"] in ("system", "developer")]
        others = [m for m in messages if m["role"] not in ("system", "developer")]
        return systems[-1] if systems else "", json.dumps(others)

    wrote = {others: own for own, others in (apart(row["input"]) for row in rows())}
    for body in server.bodies:
        # The prompt comes before, where there is one: a row's own joins it.
        joined, others = apart(body["messages"])
        assert joined.endswith(wrote[others])
        offered = body["messages"][-1]["role"] == "tool"
        assert body.get("tools") == (TOOLS if offered else None)
        assert body.get("response_format") == (None if offered else FORM)
    with closing(RunStore.open(run.path)) as store:
        page = render_report(store, {e.id: e for e in data.test})
    assert "[image]" in page and "look_up({" in page and image(3)[:99] not in page
    for kept in run.path.iterdir():
        assert image(3)[40:80].encode() not in kept.read_bytes()


def test_equal_words_about_other_images_are_other_inputs() -> None:
    data = pco.load(rows()[:6])
    assert [e.input for e in data.train][:1] == ["system: Look.\n\nuser: Which digit?\n[image]"]
    again = pco.load([*rows()[:5], {**rows()[0], "input": seen(99)}])
    assert data.fingerprint() != again.fingerprint()
    with pytest.raises(DataError, match="appears in two splits"):
        pco.load({"train": rows()[:2], "val": rows()[2:4], "test": rows()[1:2]})


TEXTS = [{"input": f"q{n}", "target": "3"} for n in range(12)]


async def test_a_tool_call_where_text_was_expected_is_a_failure(
    server: Server, tmp_path: Path
) -> None:
    server.default = says(None, finish="tool_calls", message={"tool_calls": [CALL]})
    with pytest.raises(TooManyFailures, match="calls a tool where text was expected") as caught:
        await pco.aoptimize(
            pco.load(TEXTS), reads_digit, "simulated", roles={"executor": server.spec},
            config=QUICK, runs_dir=tmp_path,
        )  # fmt: skip
    assert "roles.executor.extra" in caught.value.hint
    assert "look_up" not in str(caught.value), "the reply may quote private data"
    failed = caught.value.traces[0].rollout
    assert failed.usage.completion_tokens >= 3, "the reply was paid for"


async def test_an_agent_may_offer_tools_itself_and_see_the_calls(tmp_path: Path) -> None:
    lm = ScriptedLM().reply_with(
        lambda request: Reply("", tool_calls=(CALL,)) if request.sampling.extra else "3"
    )

    async def agent(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
        turn = {"role": "user", "content": [{"type": "text", "text": example.input}]}
        made = await lm([read_message(turn)], system=prompt, extra={"tools": TOOLS})
        return str(made.tool_calls[0]["function"]["name"])

    config = load_config({"lm": "own"})
    plan = plan_run(
        config, Sources(data=pco.load(TEXTS), reward=reads_digit, executor=agent, lm=lm)
    )
    trial = plan.connect(StackResources(client=lm)).trial()
    example = plan.dataset.train[0]
    made = await trial.run(example, Prompt("p"), Randomness(0).at(0, "x"), Rollout(example.id))
    assert (made.output, made.failure) == ("look_up", None)
    [request] = lm.history
    assert request.sampling.extra == {"tools": TOOLS}
    assert request.messages[1].wire["content"] == [{"type": "text", "text": example.input}]


@pytest.mark.parametrize(("column", "value", "sent"), [
    ("tools", json.dumps(TOOLS), TOOLS),  # as a CSV cell has it
    ("response_format", FORM, FORM),
    ("response_format", "", None),
    ("tools", None, None),
    ("tools", "look_up", DataError),
    ("tools", {"look_up": 1}, DataError),
    ("tools", [{"headers": {"api_key": "$PCO_API_KEY"}}], DataError),
    ("response_format", ["json"], DataError),
])  # fmt: skip
def test_a_column_is_sent_in_openais_shape_or_refused(
    column: str, value: object, sent: Any
) -> None:
    example = pco.Example("x", "q", fields={column: value})
    if sent is DataError:
        with pytest.raises(DataError, match=f"the column '{column}' cannot be sent"):
            body_fields(example)
    else:
        assert body_fields(example) == ({column: sent} if sent else {})


def test_fields_of_all_rows_are_settings_of_the_executor_alone() -> None:
    extra: Any = {"tools": TOOLS, "response_format": FORM}
    made = load_config({"roles": {"executor": {"extra": extra}}})
    assert made.roles["executor"].extra == extra
    with pytest.raises(ConfigError, match="the run decides the format of the critic's replies"):
        load_config({"roles": {"critic": {"extra": {"response_format": FORM}}}})


@pytest.mark.parametrize(("calls", "text"), [
    ([CALL, CALL], 'so\nlook_up({"n": 3})\nlook_up({"n": 3})'),
    *((calls, "so") for calls in (None, 3, [3], "look_up", [{"function": None}])),
])  # fmt: skip
def test_an_output_is_shown_with_its_tool_calls(calls: object, text: str) -> None:
    """A field of that name may be the agent's own."""
    assert Rollout("x", output="so", fields={"tool_calls": calls}).said == text
