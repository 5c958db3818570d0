"""The policy file: where its fields come from, what they decide, and how it reports faults."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from promptcodebook.assemble import Sources
from promptcodebook.errors import ConfigError, PolicyError, RunNotTrusted
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.executor import EVALUATION
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import copy_templates, load_templates
from promptcodebook.policy.file import PolicyFile, StoredRanking, read_policy_file
from promptcodebook.policy.policy import deploy
from promptcodebook.routing.ranking import BUCKETS, Vocabulary
from promptcodebook.types import Codebook, Example, Instinct, Parameters, Ranking
from tests.build.cases import table
from tests.build.method import World, config, talkative

TEXTS = ("rule zero", "rule one", "rule two", "rule three")
BOOK = Codebook(tuple(Instinct(text, frozen=k == 2) for k, text in enumerate(TEXTS)))
STATE = State(
    3,
    Parameters("theta", "phi", BOOK, "psi"),
    RoutingStatistics(
        ema=(-0.12345678, 0.2, 0.3, 0.4), success=(0.87654321, 0.6, 0.7, 0.8), selected=(1, 2, 3, 4)
    ),
)
ROLES = {
    role: {"temperature": n / 10, "top_p": round(0.9 + n / 100, 2), "max_tokens": 100 + n,
           "extra": {"top_k": n}}
    for n, role in enumerate(("encoder", "generator", "executor", "untrusted", "critic"), 1)
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "base_prompt": "First.",
    "output_format": "As JSON.",
    "data": {"input": "question"},
    "seed": 11,
    "roles": ROLES,
}


def file_of(program: str = "agent", stages: tuple[str, ...] = ("a", "b")) -> PolicyFile:
    return PolicyFile.of(STATE, config(**SETTINGS), load_templates("paper"), program, stages)


KNOWN = replace(STATE, statistics=replace(STATE.statistics, evidence=(0.3, 0.51, 0.25, 0.75)))


def plain(**settings: str) -> PolicyFile:
    """One prompt for the whole, with what is known of every instinct."""
    return PolicyFile.of(KNOWN, config(**settings), load_templates("default"), "", ())


def tree_of(**changed: Any) -> dict[str, Any]:
    return {**json.loads(file_of().text()), **changed}


def read(tmp_path: Path, tree: Mapping[str, Any] | str) -> PolicyFile:
    path = tmp_path / "p.json"
    path.write_text(tree if isinstance(tree, str) else json.dumps(tree), "utf-8")
    return read_policy_file(path)


def test_every_field_says_what_the_run_was_prompted_with() -> None:
    tree, templates = tree_of(), load_templates("paper")
    for name in ("encoder", "generator"):
        assert tree["templates"][name] == templates.sources[name]
    assert tree["templates"]["lines"]["untried"] == templates.lines.untried
    facts = ("format", "select", "compose", "base_prompt", "output_format", "input", "program")
    wanted = ["promptcodebook policy 2", 2, "generator", "First.", "As JSON.", "question", "agent"]
    assert [tree[fact] for fact in facts] == wanted and tree["seed"] == 11
    assert (tree["encoder"], tree["generator"], tree["stages"]) == ("theta", "phi", ["a", "b"])
    assert "psi" not in json.dumps(tree["codebook"])
    assert list(tree["sampling"].items()) == list(ROLES.items())[:4]
    first, *rest = tree["codebook"]
    assert (first["text"], first["frozen"], first["selected"]) == ("rule zero", False, 1)
    assert (first["success"], first["ema"]) == (0.876543, -0.123457)
    assert [entry["frozen"] for entry in rest] == [False, True, False]


def test_what_was_written_is_what_is_read(tmp_path: Path) -> None:
    file = file_of()
    file.save(tmp_path / "p.json")
    back = read_policy_file(tmp_path / "p.json")
    assert back == file and back.text() == file.text()
    known = back.statistics
    assert known.ema == (-0.123457, 0.2, 0.3, 0.4) and known.selected == (1, 2, 3, 4)
    assert known.success == (0.876543, 0.6, 0.7, 0.8)
    known = PolicyFile.model_validate_json(plain().text()).statistics
    assert known.evidence == (0.3, 0.51, 0.25, 0.75)
    assert back.parameters == Parameters("theta", "phi", BOOK, "")
    assert back.template_set["encoder"] == load_templates("paper")["encoder"]
    assert (tmp_path / "p.json").read_text("utf-8").endswith("}\n")
    assert '\n  "select": 2' in file.text()
    assert "Grüße" in file.model_copy(update={"base_prompt": "Grüße"}).text()
    assert [read(tmp_path, tree_of(select=s)).select for s in (1, 4)] == [1, 4]
    broken = plain().model_copy(update={"base_prompt": "half a pair \ud83d"})
    assert json.loads(broken.text())["base_prompt"] == "half a pair \ud83d"
    assert broken.text().encode() and broken.digest != plain().digest


def test_what_older_files_leave_out_has_its_default(tmp_path: Path) -> None:
    short = [{"text": text} for text in TEXTS]
    tree = tree_of(codebook=short)
    for key in ("input", "program", "stages", "sampling", "seed", "about"):
        del tree[key]
    file = read(tmp_path, tree)
    assert (file.input, file.program, file.stages, file.seed) == ("input", "", (), 0)
    assert (file.sampling, file.about) == ({}, {})
    assert file.parameters.codebook == Codebook(tuple(map(Instinct, TEXTS)))
    zero = (0.0,) * 4
    assert (file.statistics.ema, file.statistics.success) == (zero, zero)
    assert file.statistics.selected == (0,) * 4 and file.statistics.known == zero
    ranking = StoredRanking.of(WORDS).model_dump()
    for key in ("least", "outcomes", "kind", "center", "spread", "words"):
        del ranking[key]
    assert StoredRanking.model_validate(ranking).ranking == WORDS
    some = read(tmp_path, tree_of(sampling={"executor": {}})).sampling["executor"]
    assert (some.temperature, some.top_p, some.max_tokens, some.extra) == (None, None, None, {})


def test_the_digest_is_of_all_but_where_it_came_from(tmp_path: Path) -> None:
    """JSON knows no infinity: what is hashed is what the file says, not what was in memory."""
    file = file_of()
    more = file.with_about(run="r").with_about(version="v")
    assert more.about == {"run": "r", "version": "v"} and more.digest == file.digest
    for key, value in (("seed", 12), ("select", 3), ("encoder", "t"), ("base_prompt", "")):
        assert file.model_copy(update={key: value}).digest != file.digest
    endless = config(**{**SETTINGS, "roles": {"executor": {"extra": {"patience": float("inf")}}}})
    for settings in (config(**SETTINGS), endless):
        file = PolicyFile.of(STATE, settings, load_templates("paper"), "agent", ())
        file.save(tmp_path / "p.json")
        assert read_policy_file(tmp_path / "p.json").digest == file.digest


def test_digests_stay_what_they_were_when_versions_and_batches_recorded_them() -> None:
    old = PolicyFile.model_validate(table(__file__, "of_0_1_0")).digest
    assert old == "13ff2bf7a59c1e2b8503ceb41cbe11d1a4bc2b31c1ec96f9082897a2ce61805a"
    today = "9bf9002a0d2afb397a2de0b855d2ed33b40e6775b337c69853556c021bfdfb5a"
    assert file_of().digest == today


@pytest.mark.parametrize(("changed", "message"), table(__file__, "no_policies"))
def test_a_file_that_is_none_is_refused_with_the_place(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError, match=f"p.json is not a policy file: .*{message}") as caught:
        read(tmp_path, tree_of(**changed))
    assert "policy.save" in caught.value.hint


@pytest.mark.parametrize("part", ["encoder", "generator", "lines"])
def test_templates_that_cannot_be_filled_are_refused(part: str, tmp_path: Path) -> None:
    templates = tree_of()["templates"]
    if part == "lines":
        templates["lines"]["line"] = "no index, no text"
    else:
        templates[part] = templates[part] + "\n{nobody_knows}\n"
    with pytest.raises(PolicyError, match=rf"is not a policy file: templates: .*\b{part}[.:]"):
        read(tmp_path, tree_of(templates=templates))


def test_what_is_no_json_and_what_is_not_there_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "latin.json").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "brace.json").write_text("{")
    for name, message in (
        ("brace.json", "is not a policy file: the file: "),
        ("absent.json", "no policy file at"),
        ("latin.json", "cannot read the policy file"),
        (".", "cannot read the policy file"),
    ):
        with pytest.raises(PolicyError, match=message) as caught:
            read_policy_file(tmp_path / name)
        assert caught.value.hint.startswith("pco runs list") is (name == "absent.json")


def test_where_it_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PolicyError, match=r"cannot write the policy to .*p\.json: ") as caught:
        file_of().save(tmp_path / "file" / "p.json")
    assert caught.value.hint == "choose an existing folder with free space"


def test_the_policy_decides_what_it_is_and_leaves_the_rest_to_whoever_uses_it() -> None:
    file = file_of()
    below = {"lm": "simulated", "size": 9, "init": {"kind": "random", "frozen": [7]}, "timeout": 5}
    below |= {"roles": {"executor": {"temperature": 1.5}}}
    above = {"seed": 99, "compose": "verbatim", "roles": {"encoder": {"temperature": 0.7}}}
    used = file.settings(below, above)
    assert (used.lm, used.timeout) == ("simulated", 5)
    assert (used.size, used.select, used.seed, used.compose) == (4, 2, 11, "generator")
    assert (used.base_prompt, used.output_format) == ("First.", "As JSON.")
    assert (used.templates, used.compose_per_stage) == ("default", True)
    assert list(used.init.frozen) == []
    assert used.encoder.mode == "learned"
    assert used.roles["encoder"].temperature == 0.7 and used.roles["encoder"].top_p == 0.91
    assert used.roles["executor"].temperature == 0.3
    assert file_of(stages=()).settings().compose_per_stage is False
    unencoded = replace(STATE, parameters=replace(STATE.parameters, encoder=""))
    old = PolicyFile.of(unencoded, config(), load_templates("default"), "", ())
    assert (
        old.decided["encoder"] == {"mode": "none", "fewer": False}
        and "compose_per_stage" not in old.decided
    )
    assert old.settings({"compose_per_stage": True}).compose_per_stage is True


def test_a_setting_typed_wrongly_is_told_apart_from_one_that_lay_there() -> None:
    file = file_of()
    with pytest.raises(ConfigError, match=r"^your options or PCO_\*: timeout"):
        file.settings({"timeout": 5}, {"timeout": "soon"})
    with pytest.raises(ConfigError, match=r"^load_policy\(\): timeout"):
        file.settings(above={"timeout": "soon"}, where="load_policy()")
    with pytest.raises(ConfigError, match=r"^the policy.s settings: timeout"):
        file.settings({"timeout": "soon"}, {"retries": 1})


def test_a_file_decides_how_replies_are_drawn_and_more_only_where_it_is_trusted(
    tmp_path: Path,
) -> None:
    drawn = {"top_k": 3, "stop": ["END", "."], "chat_template_kwargs": {"enable_thinking": False}}
    fine = read(tmp_path, tree_of(sampling={"executor": {"extra": drawn}}))
    assert fine.settings().roles["executor"].extra == drawn
    more = {**drawn, "tools": [{"server_url": "http://theirs.test"}]}
    file = read(tmp_path, tree_of(sampling={"executor": {"extra": more}}))
    assert file.beyond_sampling == ("sampling.executor.extra.tools",)
    with pytest.raises(RunNotTrusted, match=r"p\.json sets sampling\.executor\.extra\.tools") as no:
        file.settings(name="p.json")
    assert "--trust" in no.value.hint and "trust=True" in no.value.hint
    assert file.settings(trusted=True).roles["executor"].extra == more


def test_a_file_chooses_no_credential_even_where_it_is_trusted(tmp_path: Path) -> None:
    """The names of variables in it would be filled in from this user's environment."""
    asking = {"top_k": 3, "api_key": "$PCO_LOOT", "provider": {"token": "$PCO_LOOT", "only": ["a"]}}
    file = read(tmp_path, tree_of(sampling={"executor": {"extra": asking}}))
    kept = {"top_k": 3, "provider": {"only": ["a"]}}
    assert file.settings(trusted=True).roles["executor"].extra == kept
    own = config(**{**SETTINGS, "roles": {"executor": {"extra": asking}}})
    assert (
        PolicyFile.of(STATE, own, load_templates("paper"), "", ()).sampling["executor"].extra
        == kept
    )


def test_the_rows_with_one_prompt_are_named() -> None:
    file = file_of()
    assert file.fixed_prompt("concat").text == file.concat
    assert file.fixed_prompt("none").text == "First."
    for row in ("best_fixed", "best_single", "present"):
        with pytest.raises(PolicyError, match=f"does not record the prompt of the row '{row}'"):
            file.fixed_prompt(row)
        assert file.with_about(**{row: "Be so."}).fixed_prompt(row).text == "Be so."
    known = file.with_about(present="You are terse.")
    assert known.fixed_prompt("present").text == "You are terse." and known.digest == file.digest
    for row in ("learned", "untrained", "concatt"):
        with pytest.raises(PolicyError, match="each input gets its own") as caught:
            file.fixed_prompt(row)
    assert "prompt: 'none', 'concat', 'present', 'best_fixed', 'best_single'" in caught.value.hint


def test_concat_is_every_instinct_between_the_fixed_prompt_and_the_output_format() -> None:
    rules = "rule zero\nrule one\nrule two\nrule three"
    assert plain().concat == rules
    assert plain(base_prompt="First.", output_format="As JSON.").concat == (
        f"First.\n\n{rules}\n\nAs JSON."
    )
    # Where instincts are inserted as they are, the learned prompts hold no format either.
    assert plain(output_format="As JSON.", compose="verbatim").concat == rules


# --- a ranking in the file ---
VOCABULARY = Vocabulary.of([f"word{i} and word{i // 3}" for i in range(40)]).with_vectors(
    [(i / 7, -1e-7 * i, 12345.6789 * i) for i in range(9)], 0.25
)
SIZE = BUCKETS + 3
WORDS = Ranking(
    rarity=VOCABULARY.rarity,
    unit=0.00123,
    weights=tuple(tuple((7 * b + k) % 2001 - 1000 for b in range(BUCKETS)) for k in range(3)),
    bias=(0.5, -0.25, 0.125),
    likeness=0.75,
    more=-0.0625,
)
BOTH = replace(
    WORDS,
    weights=tuple((*row, 1, -2, 3) for row in WORDS.weights),
    least=2,
    outcomes=384,
    kind="distilled",
    center=VOCABULARY.center,
    spread=VOCABULARY.spread,
    words=VOCABULARY.words,
)


@pytest.mark.parametrize("ranking", [WORDS, BOTH], ids=["words", "both"])
def test_a_ranking_comes_back_from_its_file_as_it_was(ranking: Ranking) -> None:
    stored = StoredRanking.of(ranking)
    assert stored.ranking == ranking
    assert StoredRanking.model_validate_json(stored.model_dump_json()).ranking == ranking
    rows = (stored.rarity, stored.center, stored.spread, *stored.weights)
    lengths = {len(row.split(" ")) for row in rows if row}
    assert lengths <= {BUCKETS, SIZE, 3}, "a row is one text of numbers"


@pytest.mark.parametrize(("edit", "fault"), [
    *table(__file__, "misfits"),
    ({"rarity": "1.0 2.0"}, f"rarity must have {BUCKETS} numbers, and .* weights must have {SIZE}"),
    ({"weights": (*StoredRanking.of(BOTH).weights[:2], "1")}, "rarity must have"),
    ({"weights": StoredRanking.of(BOTH).weights[:2]}, "bias must have a number"),
])  # fmt: skip
def test_a_ranking_that_does_not_fit_together_is_refused(edit: dict[str, Any], fault: str) -> None:
    tree = {**StoredRanking.of(BOTH).model_dump(), **edit}
    with pytest.raises(ValidationError, match=fault):
        StoredRanking.model_validate(tree)


# --- a policy carries the texts it prompts with
X = Example("x", "What are lamps good for?")


async def requests_in_training(templates: str) -> list[tuple[str, object]]:
    """What encoder and generator are asked where the set itself is at hand."""
    world = World(config(templates=templates))
    draws = world.config.randomness.at(EVALUATION, X.id)
    route, *_ = await world.composer.route(STATE.parameters, STATE.statistics, X, draws)
    await world.composer.compose(STATE.parameters, route, X, draws)
    return [(r.role, r.messages) for r in world.lm.history]


async def requests_of(file: PolicyFile) -> list[tuple[str, object]]:
    """What a deployed policy asks."""
    lm = ScriptedLM().reply_with(talkative)
    await deploy(file, file.settings(above={"lm": "own"}), Sources(lm=lm)).aprompt(X)
    return [(r.role, r.messages) for r in lm.history]


def of_set(templates: str) -> PolicyFile:
    settings = config(templates=templates)
    return PolicyFile.of(STATE, settings, load_templates(templates), "", ())


async def test_a_policy_prompts_as_in_training_without_the_folder_of_its_templates(
    tmp_path: Path,
) -> None:
    mine = tmp_path / "mine"
    copy_templates(mine)
    (mine / "generator.md").write_text("## user\nMINE: {phi} / {instincts} / {task}")
    manifest = (mine / "set.toml").read_text()
    (mine / "set.toml").write_text(manifest.replace("[{index}]", "#{index}"))
    trained = await requests_in_training(str(mine))
    of_set(str(mine)).save(tmp_path / "p.json")
    assert str(tmp_path) not in of_set(str(mine)).text()
    shutil.rmtree(mine)
    deployed = await requests_of(read_policy_file(tmp_path / "p.json"))
    assert deployed == trained and [role for role, _ in deployed] == ["encoder", "generator"]
    assert "#1 rule one" in repr(deployed[0]) and "MINE: phi" in repr(deployed[1])


@pytest.mark.parametrize("templates", ["default", "paper"])
async def test_a_file_of_version_01_names_a_set_that_ships_and_still_loads(
    tmp_path: Path, templates: str
) -> None:
    now = json.loads(of_set(templates).text())
    then = {k: v for k, v in now.items() if k not in ("program", "stages", "sampling")}
    then |= {"format": "promptcodebook policy 1", "templates": templates}
    old = read(tmp_path, then)
    assert old.format == "promptcodebook policy 2"
    assert await requests_of(old) == await requests_in_training(templates)
    for name in ("mine", "../x"):
        with pytest.raises(PolicyError, match=f"no set is called '{name}'"):
            read(tmp_path, {**then, "templates": name})
