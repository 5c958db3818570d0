"""Exports of a live policy in a fresh process, on replies that were recorded: the same prompts."""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from promptcodebook.deploy.exports.forms import FORMS, export_policy
from promptcodebook.errors import ConfigError, RunNotTrusted
from promptcodebook.policy.file import PolicyFile
from promptcodebook.policy.policy import load_policy
from tests.build.cli import pco, served
from tests.build.exports import HOSTILE, INPUTS, fresh, live, written
from tests.build.method import routed
from tests.build.policy import RANKING, file_of
from tests.build.server import Server, says


class Recorded:
    """Routes and prompts that depend on all that was asked, recorded; afterwards nothing but those
    is answered, and whatever else is asked counts as a call of the executor."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.default = self._answer
        self.recording = True
        self.executed: list[list[dict[str, Any]]] = []
        self._replies: dict[str, str] = {}

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        told = [body["messages"], body.get("response_format"), body.get("seed")]
        key = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        if self.recording:
            first = int(key[:4], 16) % 3
            prompt = f"Composed prompt {key}: {HOSTILE} as it is."
            self._replies[key] = routed(first, 3) if "response_format" in body else prompt
        if key not in self._replies:
            self.executed.append(body)
            return await says("an answer")(request, body)
        return await says(self._replies[key])(request, body)


MEASURED = {"temperature": 0.0, "max_tokens": 12, "stop": ["END"], "top_k": 5}


CODE = tomllib.loads((Path(__file__).parent / "exports.toml").read_text("utf-8"))
SLOW = {
    "dspy": pytest.mark.slow,
    "json": pytest.mark.slow,
    "langchain": pytest.mark.slow,
    "mlflow": pytest.mark.local,
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=SLOW.get(kind, ())) for kind in CODE])
def test_an_export_makes_the_prompts_of_the_policy(kind: str, tmp_path: Path) -> None:
    file, recorded = live(), Recorded()
    written(tmp_path, kind, file)
    file.save(tmp_path / "p.json")
    with served(recorded.server):
        with load_policy(tmp_path / "p.json", lm=recorded.server.spec) as policy:
            expected = [policy.prompt(x) for x in INPUTS]
        calls, recorded.recording = recorded.server.calls, False
        assert len(set(expected)) == len(INPUTS) and calls == 2 * len(INPUTS)
        prompts = fresh(tmp_path, CODE[kind], recorded.server.spec)
    assert prompts == expected
    executed = [[m["content"] for m in body["messages"]] for body in recorded.executed]
    answers = kind in ("dspy", "langchain")
    asked = [list(pair) for pair in zip(expected, INPUTS, strict=True)] if answers else []
    assert executed[: len(asked)] == asked, "nothing else is asked, but for the executor"
    for body in recorded.executed[: len(asked)]:
        body.setdefault("max_tokens", body.get("max_completion_tokens"))
        assert {name: body[name] for name in MEASURED} == MEASURED
    own = [body["temperature"] for body in recorded.executed[len(asked) :]]
    assert own == [0.7] * answers, "the caller's own value counts"


def test_an_export_carries_what_was_measured_or_says_that_it_does_not() -> None:
    stops = {"stop": ["END"], "response_format": "none"}  # no word of a server
    executor = {"temperature": 0.0, "max_tokens": 12, "extra": stops}
    file = file_of(roles={"executor": executor})
    fields = {"temperature": 0.0, "max_tokens": 12, "stop": ["END"]}
    assert file.answer_fields == fields

    def text(kind: str, name: str) -> str:
        return export_policy(file, kind, "t").files[name]

    assert json.loads(text("openai-system-prompt", "system-prompt.json"))["measured_with"] == fields
    names = "temperature, max_tokens, stop"
    for kind, name in (("mlflow", "model.py"), ("dspy", "program.py"), ("langchain", "chain.py")):
        assert names in text(kind, name)


def test_an_export_that_takes_no_call_names_no_model() -> None:
    file = file_of(ranking=RANKING, compose="verbatim")
    assert "call no model, so none has" in export_policy(file, "dspy", "t").files["program.py"]


def test_what_is_one_text_says_that_it_does_not_route() -> None:
    def prompt_of(file: PolicyFile) -> dict[str, Any]:
        files = export_policy(file, "openai-system-prompt", "t").files
        return json.loads(files["system-prompt.json"])

    file = live()
    prompt = prompt_of(file)
    assert prompt["row"] == "concat"
    assert prompt["messages"] == [{"role": "system", "content": file.concat}]
    assert "a single prompt cannot do" in prompt["note"]
    prompt = prompt_of(file.with_about(best_fixed="The best one."))
    assert prompt["row"] == "best_fixed" and prompt["messages"][0]["content"] == "The best one."
    staged = file.model_copy(update={"stages": ("find", "read")})
    best = staged.with_about(best_fixed="find: Look it up.\n\nread: Read it.")
    assert prompt_of(best)["stages"]["read"] == [{"role": "system", "content": "Read it."}]
    live_kinds = {kind for kind in FORMS if export_policy(file, kind, "t").live}
    assert live_kinds == {"json", "dspy", "langchain", "mlflow"}
    with pytest.raises(ConfigError, match="find, read"):
        export_policy(staged, "dspy", "t")
    assert export_policy(staged, "json", "t").live


def test_code_uses_a_policy_that_names_body_fields_only_where_it_is_trusted() -> None:
    file = file_of(preset="small", roles={"executor": {"extra": {"api_base": "http://x.test"}}})
    with pytest.raises(RunNotTrusted, match="api_base"):
        export_policy(file, "dspy", "t")
    assert export_policy(file, "dspy", "t", trusted=True).folder
    assert export_policy(file, "json", "t").live


def test_code_says_who_is_asked_whatever_the_name() -> None:
    made = export_policy(live(), "dspy", 'a"""\\name').files["program.py"]
    compile(made, "program.py", "exec")
    assert "a-name" in made and "an encoder's call routes, a generator's call composes" in made


def test_the_command_writes_a_file_or_a_folder(tmp_path: Path) -> None:
    file = live()
    file.save(tmp_path / "p.json")
    export = ("export", "p.json", "--to")
    assert pco(*export, "json", cwd=tmp_path).out == file.text()
    pco(*export, "dspy", cwd=tmp_path).error(2, "program.py", "--to dspy -o dspy")
    pco(*export, "dspi", cwd=tmp_path).error(2, "did you mean 'dspy'")
    done = pco(*export, "langchain", "-o", "chain", "--json", cwd=tmp_path)
    assert done.json["live"] is True
    assert {f.name for f in (tmp_path / "chain").iterdir()} == {"policy.json", "chain.py"}
    one = pco(*export, "openai-system-prompt", "-o", "one.json", cwd=tmp_path)
    assert one.code == 0 and "does not choose instincts" in one.err
