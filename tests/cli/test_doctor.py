"""`pco doctor` from settings to disk; what it finds of endpoints is in tests/doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.invoked import Result, pco, served
from tests.lm.server import Server, Step, says


def found(result: Result) -> dict[str, Any]:
    """name -> finding, of all sections."""
    return {f["name"]: f for s in result.json["sections"] for f in s["findings"]}


def doctor(folder: Path, *args: str) -> Result:
    return pco("doctor", *args, "--json", cwd=folder)


def asking(folder: Path, step: Step, *args: str) -> tuple[Result, Server]:
    """With a server as the model of all roles; `URL` in `args` is its spec instead."""
    server = Server()
    server.default = step
    with served(server):
        typed = [word.replace("URL", server.spec) for word in args]
        lm = () if typed != list(args) else ("--lm", server.spec)
        return doctor(folder, *lm, *typed), server


def test_a_fresh_folder_is_well(folder: Path) -> None:
    result = doctor(folder)
    assert result.code == 0 and result.json["ok"]
    parts = ("settings", "data", "reward", "call", "encoder", "generator", "executor", "critic")
    assert {found(result)[part]["level"] for part in (*parts, "attribution")} == {"ok"}
    assert "endpoint" not in found(result)
    text = pco("doctor", cwd=folder)
    assert text.code == 0 and "next: pco estimate" in text.out


def test_too_few_test_examples_for_a_verdict_are_named_before_anything_is_spent(
    folder: Path,
) -> None:
    finding = found(doctor(folder))["verdict"]
    assert finding["level"] == "warn" and "data.fractions" in finding["next_step"]
    said = "no verdict will come of 6 test examples: it takes at least 20"
    assert finding["what"] == said
    assert said in pco("estimate", "--json", cwd=folder).json["assumptions"]
    enough = ("--set", "data.fractions=[0.05, 0.05, 0.9]")
    assert "verdict" not in found(doctor(folder, *enough))
    assert said not in pco("estimate", *enough, cwd=folder).out


def test_a_generator_that_writes_no_prompt_is_a_warning(folder: Path) -> None:
    result, _ = asking(folder, says("<think>nothing but thoughts"))
    findings = [f for s in result.json["sections"] for f in s["findings"]]
    (warned,) = [f for f in findings if "stand in for the prompt verbatim" in f["what"]]
    assert (warned["name"], warned["level"]) == ("generator", "warn")


def test_a_model_that_cannot_play_the_roles_fails_in_the_rehearsal(folder: Path) -> None:
    result, _ = asking(folder, says("I would rather talk about the weather."))
    assert result.code == 1
    levels = {name: f["level"] for name, f in found(result).items()}
    assert levels["call"] == "ok"
    assert (levels["encoder"], levels["generator"], levels["executor"]) == ("warn", "ok", "ok")
    assert levels["critic"] == "fail"
    assert "ParseError" in found(result)["critic"]["what"]
    malformed = found(doctor(folder, "--lm", "simulated?faults=json:1"))
    assert malformed["replies"]["level"] == "warn"


def test_every_distinct_model_is_asked_and_names_its_roles(folder: Path) -> None:
    result, server = asking(folder, says("ok"), "--set", "roles.critic.model=URL")
    titles = [s["title"] for s in result.json["sections"]]
    assert f"{server.spec} (critic)" in titles
    assert any(t.startswith("simulated (encoder, generator, executor,") for t in titles)
    assert server.calls > 5


def test_a_key_is_named_and_never_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCO_API_KEY", "sk-verysecret")
    result, server = asking(folder, says("ok"))
    assert found(result)["key variable"]["what"] == "PCO_API_KEY is set"
    assert "sk-verysecret" not in result.out + result.err
    assert server.headers[0]["Authorization"] == "Bearer sk-verysecret"


REWARD = "def reward(example, output):\n    return {}\n"


@pytest.mark.parametrize(
    ("file", "text", "args", "name", "said"),
    [
        ("reward.py", REWARD.format("1 / 0"), (), "reward", "ZeroDivisionError"),
        ("reward.py", REWARD.format("9"), (), "reward", "outside its range"),
        ("data.jsonl", "{oops\n", (), "task", "data.jsonl:1"),
        (None, "", ("--set", "lm="), "model", "has no model"),
        (None, "", ("--lm", "http://127.0.0.1:9/v1#m"), "address", "nothing answers"),
        (None, "", ("--lm", "openai/gpt-x"), "key variable", "OPENAI_API_KEY is not set"),
        (None, "", ("--set", "budget.usd=5"), "prices", "so budget.usd cannot be kept"),
    ],
)
def test_what_a_run_cannot_do_with_fails(
    folder: Path, file: str | None, text: str, args: tuple[str, ...], name: str, said: str
) -> None:
    if file is not None:
        (folder / file).write_text(text)
    price = ("--set", "roles.critic.model=URL") if name == "prices" else ()
    result = asking(folder, says("ok"), *args, *price)[0] if price else doctor(folder, *args)
    assert result.code == 1 and not result.json["ok"]
    finding = found(result)[name]
    assert finding["level"] == "fail" and said in finding["what"]
    if name == "task":  # the model is asked all the same
        assert found(result)["call"]["level"] == "ok"
    if name == "key variable":  # and here it is not
        assert finding["next_step"] == "export OPENAI_API_KEY=..."
        assert "address" not in found(result)


def test_a_runs_folder_that_cannot_be_written_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_RUNS", "/proc/nowhere/runs")
    result = doctor(folder)
    assert result.code == 1
    finding = found(result)["runs"]
    assert finding["level"] == "fail" and "PCO_RUNS" in finding["next_step"]


def test_an_untrusted_role_that_shares_its_endpoint_is_warned_of(folder: Path) -> None:
    shared = found(doctor(folder, "--set", "roles.untrusted.model=simulated?world=2"))
    assert shared["endpoint"]["level"] == "warn" and "executor" in shared["endpoint"]["what"]
    apart, _ = asking(folder, says("ok"), "--set", "roles.untrusted.model=URL")
    assert found(apart)["endpoint"]["level"] == "ok"


AGENT = """import promptcodebook as pco


async def run(prompt: pco.Prompt, example: pco.Example, lm: pco.Chat) -> str:
    draft = await lm(example.input, system=prompt.of('draft'))
    return (await lm(draft.text, system=prompt.of('final'))).text


run.stages = ('draft', 'final')
"""


def test_templates_that_never_name_the_stage_are_warned_of(folder: Path) -> None:
    (folder / "agent.py").write_text(AGENT)
    assert pco("templates", "copy", "mine", cwd=folder).code == 0
    typed = ("--set", "executor=agent.py:run", "--set", "templates=./mine")
    staged = (*typed, "--set", "compose_per_stage=true")
    assert "templates" not in found(doctor(folder, *staged))
    generator = folder / "mine" / "generator.md"
    generator.write_text(generator.read_text().replace("{stage}\n", ""))
    warned = found(doctor(folder, *staged))["templates"]
    assert warned["level"] == "warn"
    assert "./mine lacks {stage}" in warned["what"] and "2 stages" in warned["what"]
    assert "./mine/generator.md" in warned["next_step"]
    for fine in (typed, (*staged, "--set", "compose=verbatim")):
        assert "templates" not in found(doctor(folder, *fine))
