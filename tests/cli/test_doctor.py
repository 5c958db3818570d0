from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invoked import Result, pco, served
from tests.lm.server import Server, fails, says


def found(result: Result) -> dict[str, Any]:
    """name -> finding, of all sections."""
    return {f["name"]: f for s in result.json["sections"] for f in s["findings"]}


def doctor(folder: Path, *args: str) -> Result:
    return pco("doctor", *args, "--json", cwd=folder)


def test_a_fresh_folder_is_well(folder: Path) -> None:
    result = doctor(folder)
    assert result.code == 0 and result.json["ok"]
    levels = {name: f["level"] for name, f in found(result).items()}
    assert levels["settings"] == levels["data"] == levels["reward"] == levels["call"] == "ok"
    text = pco("doctor", cwd=folder)
    assert text.code == 0 and "next: pco estimate" in text.out


def test_too_few_test_examples_for_a_verdict_are_told_before_anything_is_spent(
    folder: Path,
) -> None:
    finding = found(doctor(folder))["verdict"]
    assert finding["level"] == "warn" and "data.fractions" in finding["next_step"]
    told = "no verdict will come of 6 test examples: it takes at least 20"
    assert finding["what"] == told
    assert told in pco("estimate", "--json", cwd=folder).json["assumptions"]
    enough = ("--set", "data.fractions=[0.05, 0.05, 0.9]")
    assert "verdict" not in found(doctor(folder, *enough))
    assert told not in pco("estimate", *enough, cwd=folder).out


def test_an_endpoint_that_obeys_schemas_is_said_to(folder: Path) -> None:
    server = Server()

    async def obeys(request: Any, body: dict[str, Any]) -> Any:
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        code = schema["properties"].get("code", {"enum": [""]})["enum"][0] if schema else ""
        text = json.dumps({"code": code}) if schema else "hello"
        return await says(text)(request, body)

    server.default = obeys
    with served(server):
        result = doctor(folder, "--lm", server.spec)
    assert "enforced" in found(result)["structured output"]["what"]
    assert "unknown for" in found(result)["prices"]["what"]


def test_an_endpoint_that_refuses_schemas_is_said_to(folder: Path) -> None:
    server = Server()

    async def refuses(request: Any, body: dict[str, Any]) -> Any:
        step = fails(400, "unsupported", param="response_format")
        return await (step if "response_format" in body else says("hello"))(request, body)

    server.default = refuses
    with served(server):
        result = doctor(folder, "--lm", server.spec)
    assert "refused" in found(result)["structured output"]["what"]


def test_a_generator_that_writes_no_prompt_is_a_warning(folder: Path) -> None:
    server = Server()
    server.default = says("<think>nothing but thoughts")
    with served(server):
        result = doctor(folder, "--lm", server.spec)
    findings = [f for s in result.json["sections"] for f in s["findings"]]
    (warned,) = [f for f in findings if "stand in for the prompt verbatim" in f["what"]]
    assert (warned["name"], warned["level"]) == ("generator", "warn")


def test_a_model_that_cannot_play_the_roles_fails_in_the_rehearsal(folder: Path) -> None:
    server = Server()
    server.default = says("I would rather talk about the weather.")
    with served(server):
        result = doctor(folder, "--lm", server.spec)
    assert result.code == 1
    levels = {name: f["level"] for name, f in found(result).items()}
    assert levels["call"] == "ok"
    assert (levels["encoder"], levels["generator"], levels["executor"]) == ("warn", "ok", "ok")
    assert levels["critic"] == "fail"
    assert "ParseError" in found(result)["critic"]["what"]


def test_the_rehearsal_takes_one_example_to_its_gradients(folder: Path) -> None:
    parts = found(doctor(folder))
    for part in ("encoder", "generator", "executor", "critic", "attribution"):
        assert parts[part]["level"] == "ok", parts[part]
    malformed = found(doctor(folder, "--lm", "simulated?faults=json:1"))
    assert malformed["replies"]["level"] == "warn"


def test_every_distinct_model_is_asked_and_names_its_roles(folder: Path) -> None:
    server = Server()
    with served(server):
        result = doctor(folder, "--set", f"roles.critic.model={server.spec}")
    titles = [s["title"] for s in result.json["sections"]]
    assert f"{server.spec} (critic)" in titles
    assert any(t.startswith("simulated (encoder, generator, executor,") for t in titles)
    assert server.calls > 5


def test_an_endpoint_that_is_down_fails(folder: Path) -> None:
    result = doctor(folder, "--lm", "http://127.0.0.1:9/v1#m")
    assert result.code == 1 and not result.json["ok"]
    address = found(result)["address"]
    assert address["level"] == "fail" and address["next_step"]


def test_a_key_is_named_and_never_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCO_API_KEY", "sk-verysecret")
    server = Server()
    with served(server):
        result = doctor(folder, "--lm", server.spec)
    assert found(result)["key variable"]["what"] == "PCO_API_KEY is set"
    assert "sk-verysecret" not in result.out + result.err
    assert server.headers[0]["Authorization"] == "Bearer sk-verysecret"


@pytest.mark.parametrize(
    ("body", "said"),
    [("    return 1 / 0", "ZeroDivisionError"), ("    return 9", "outside its range")],
)
def test_a_reward_that_fails_an_empty_answer_is_found(folder: Path, body: str, said: str) -> None:
    (folder / "reward.py").write_text(f"def reward(example, output):\n{body}\n")
    result = doctor(folder)
    assert result.code == 1
    assert found(result)["reward"]["level"] == "fail" and said in found(result)["reward"]["what"]


def test_data_that_does_not_load_is_found_and_the_model_is_asked_all_the_same(
    folder: Path,
) -> None:
    (folder / "data.jsonl").write_text("{oops\n")
    result = doctor(folder)
    assert result.code == 1
    assert "data.jsonl:1" in found(result)["task"]["what"]
    assert found(result)["call"]["level"] == "ok"


def test_no_model_is_found(folder: Path) -> None:
    result = doctor(folder, "--set", "lm=")
    assert result.code == 1 and "has no model" in found(result)["model"]["what"]


def test_an_untrusted_role_that_shares_its_endpoint_is_warned_of(folder: Path) -> None:
    shared = found(doctor(folder, "--set", "roles.untrusted.model=simulated?world=2"))
    assert shared["endpoint"]["level"] == "warn" and "executor" in shared["endpoint"]["what"]
    server = Server()
    with served(server):
        apart = found(doctor(folder, "--set", f"roles.untrusted.model={server.spec}"))
    assert apart["endpoint"]["level"] == "ok"
    assert "endpoint" not in found(doctor(folder))


def test_a_money_budget_that_cannot_be_kept_fails(folder: Path) -> None:
    server = Server()
    with served(server):
        result = doctor(folder, "--lm", server.spec, "--set", "budget.usd=5")
    assert result.code == 1 and found(result)["prices"]["level"] == "fail"


def test_a_runs_folder_that_cannot_be_written_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PCO_RUNS", "/proc/nowhere/runs")
    result = doctor(folder)
    assert result.code == 1
    assert (
        found(result)["runs"]["level"] == "fail"
        and "PCO_RUNS" in found(result)["runs"]["next_step"]
    )


def test_a_provider_that_wants_a_key_is_not_asked_without_one(folder: Path) -> None:
    result = doctor(folder, "--lm", "openai/gpt-x")
    assert result.code == 1
    key = found(result)["key variable"]
    assert key["level"] == "fail" and "OPENAI_API_KEY is not set" in key["what"]
    assert key["next_step"] == "export OPENAI_API_KEY=..."
    assert "address" not in found(result)


def test_templates_that_never_name_the_stage_are_warned_of(folder: Path) -> None:
    (folder / "agent.py").write_text(
        "import promptcodebook as pco\n\n\n"
        "async def run(prompt: pco.Prompt, example: pco.Example, lm: pco.Chat) -> str:\n"
        "    draft = await lm(example.input, system=prompt.of('draft'))\n"
        "    return (await lm(draft.text, system=prompt.of('final'))).text\n\n\n"
        "run.stages = ('draft', 'final')\n"
    )
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
    assert "templates" not in found(doctor(folder, *typed))
    verbatim = ("--set", "compose=verbatim")
    assert "templates" not in found(doctor(folder, *staged, *verbatim))
