"""What the rows of a verdict are made of, the rival without routing, and what figures mean."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import promptcodebook as pco
from promptcodebook.assemble import Sources
from promptcodebook.calls import Chat, Request
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError
from promptcodebook.lm.scripted import ScriptedLM
from promptcodebook.method.state import RoutingStatistics
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import read_policy_file
from promptcodebook.policy.references import first_policy, resolve
from promptcodebook.run.opening import Where, open_run
from promptcodebook.run.optimize import finish
from promptcodebook.types import Example, Prompt
from tests.build.method import answering, routed, saying, sent, talkative
from tests.build.teachable import install_package

SEEDS = ("rule zero", "rule one", "rule two", "rule three")


SETTINGS: dict[str, Any] = {
    "preset": "full",
    "size": 4,
    "select": 2,
    "cache": False,
    "init": {"instincts": SEEDS, "prompt": "You are terse."},
    "update": {"epochs": 2, "batch_size": 4},
    "validation": {"every": 1, "subset": 4, "patience": 99},
    "output_format": "Reply with a number.",
}


def examples(split: str, count: int) -> tuple[Example, ...]:
    return tuple(
        Example(f"{split}{i}", f"{split} input number {i}", f"target {i}") for i in range(count)
    )


def reward(example: Example, output: str) -> float:
    """The number that was answered."""
    return float(output) if output.replace(".", "", 1).isdecimal() else 0.0


def train(folder: Path, lm: ScriptedLM, **settings: Any) -> pco.Run:
    data = pco.Dataset(examples("train", 8), examples("val", 4), examples("test", 20))
    config = {**SETTINGS, **settings}
    return pco.optimize(data, reward, lm=lm, config=config, runs_dir=folder)


def scripted() -> ScriptedLM:
    return saying("executor", "0.5")


def falling() -> ScriptedLM:
    """Whatever was rewritten makes answers worse: the untrained codebook validates best."""

    return answering(executor=lambda r: "0.3" if "rewritten" in sent(r) else "0.5")


def on_test(lm: ScriptedLM, role: str) -> list[Request]:
    return [r for r in lm.history if r.role == role and "test input number" in sent(r)]


def test_the_verdict_is_asked_greedily_and_training_is_not(tmp_path: Path) -> None:
    lm = scripted()
    train(tmp_path, lm)
    judged = on_test(lm, "executor")
    validated = [r for r in lm.history if r.role == "executor" and "val input" in sent(r)]
    trained = [r for r in lm.history if r.role == "executor" and "train input" in sent(r)]
    assert judged and all(r.greedy for r in judged)
    assert validated and all(r.greedy for r in validated)
    assert trained and not any(r.greedy for r in trained)


def test_concat_is_the_kept_codebook_and_the_output_format(tmp_path: Path) -> None:
    run = train(tmp_path, scripted(), keep="last")
    assert all(text not in run.codebook.texts for text in SEEDS[:2])
    expected = "\n".join(run.codebook.texts) + "\n\nReply with a number."
    assert run.rows["concat"].prompt == expected
    assert run.policy.row("concat").text == expected
    assert run.rows["present"].prompt == "You are terse."
    assert run.policy.row("present").text == "You are terse."

    # It gets no format where the learned prompts get none.
    run = train(tmp_path / "b", scripted(), compose="verbatim", base_prompt="Before all.")
    prompt = run.rows["concat"].prompt
    assert prompt == "Before all.\n\n" + "\n".join(run.codebook.texts)
    assert run.rows["present"].prompt == "Before all.\n\nYou are terse."


def test_learned_is_routed_with_the_trained_statistics_and_untrained_without(
    tmp_path: Path,
) -> None:
    lm = scripted()
    run = train(tmp_path, lm, keep="last")
    lines = load_templates("default").lines
    first = first_policy(tmp_path, run.id)
    trained = lines.show(run.codebook, run.policy.file.statistics)
    fresh = lines.show(first.parameters.codebook, RoutingStatistics.fresh(4))
    assert "(success 0.5" in trained
    assert trained != lines.show(run.codebook, RoutingStatistics.fresh(4))
    routed = [sent(r) for r in on_test(lm, "encoder")]
    assert sum(trained in text for text in routed) == 20
    assert sum(fresh in text for text in routed) == 20
    assert len(routed) == 40


def test_keep_decides_which_state_is_judged_saved_and_resolved(tmp_path: Path) -> None:
    best = train(tmp_path, falling(), compose="verbatim")
    last = train(tmp_path, falling(), compose="verbatim", keep="last")
    assert best.codebook.texts == SEEDS
    assert last.codebook.texts != SEEDS
    assert (best.best.step, last.best.step) == (-1, 1)
    for run in (best, last):
        saved = read_policy_file(run.path / "policy.json")
        assert saved.digest == run.policy.file.digest
        assert saved.digest == resolve(tmp_path, run.id).file.digest
        prompt = run.rows["concat"].prompt
        assert prompt is not None and all(text in prompt for text in run.codebook.texts)
    assert "Training changed nothing on the test split" in best.verdict
    assert "changed nothing" not in last.verdict


LONG = "the ferry leaves pier nine at seven sharp every morning"


@pytest.mark.parametrize(
    ("prompt", "title"), [("You are terse.", "the present prompt"), ("", "zero-shot (no prompt)")]
)
def test_the_first_row_is_named_after_what_the_user_has_today(
    tmp_path: Path, prompt: str, title: str
) -> None:
    run = train(tmp_path, scripted(), init={"instincts": SEEDS, "prompt": prompt})
    assert run.rows["present"].title == title


LETTERS = "ABCD"
INIT = {"instincts": [f"say {letter}" for letter in LETTERS], "prompt": "Answer in letters."}
DULL = ["Be kind.", "Be brief.", "Be calm.", "Be clear."]
LETTERED: dict[str, Any] = {
    "size": 4,
    "select": 1,
    "cache": False,
    "compose": "verbatim",
    "init": INIT,
    "explore": {"policy": "none"},
    "update": {"epochs": 1, "batch_size": 4, "text_updates": False},
    "validation": {"every": 1, "subset": 8, "patience": 99},
}


def wants(split: str, letters: str) -> tuple[Example, ...]:
    """An input for each letter that is wanted."""
    return tuple(
        Example(f"{split}{i}", f"{split} {i} wants {letter}", letter)
        for i, letter in enumerate(letters)
    )


def obey(request: Request) -> str:
    """Routes to what is wanted, and says what the one order says."""
    if request.role == "encoder":
        asked = sent(request).rpartition("wants ")[2][0]
        return routed(LETTERS.index(asked))
    if request.role != "executor":
        return str(talkative(request))
    told = " ".join(m.content for m in request.messages if m.role == "system")
    letters = [letter for letter in LETTERS if f"say {letter}" in told]
    return letters[0] if len(letters) == 1 else "?"


def right(example: Example, output: str) -> float:
    return float(output == example.target)


Splits = Sequence[str | tuple[Example, ...]]


def learn(folder: Path, splits: Splits, lm: Any = obey, **settings: Any) -> pco.Run:
    """A run over inputs that want these letters, in training, validation and test."""
    named = zip(("train", "val", "test"), splits, strict=True)
    train, val, test = (wants(n, x) if isinstance(x, str) else x for n, x in named)
    data = pco.Dataset(train, val, test)
    model = lm if isinstance(lm, ScriptedLM) else ScriptedLM().reply_with(lm)
    executor = settings.pop("executor", None)
    config = {**LETTERED, **settings}
    return pco.optimize(
        data, right, lm=model, executor=executor, config=config, runs_dir=folder, progress=False
    )


ALIKE = ("B" * 8, "B" * 8, "B" * 24)
MIXED = ("ABCD" * 2, "ABBCD" * 2, "ABCD" * 6)


def test_where_all_inputs_need_the_same_one_prompt_is_named_instead(tmp_path: Path) -> None:
    run = learn(tmp_path, ALIKE)
    assert run.rows["learned"].score.mean == 1.0
    assert run.rows["present"].score.mean == run.rows["concat"].score.mean == 0.0
    assert run.rows["best_fixed"].prompt == "say B"
    assert run.worth is False and run.deploy == "best_fixed"
    title = "the best of its prompts, used for all inputs (best_fixed)"
    assert f"No clear difference from {title}, at 1 call per query instead of 2" in run.verdict
    # Where every prompt is a single instinct, the best of those is enough.
    run = learn(tmp_path / "single", ALIKE, router={"kind": "outcomes"}, explore={})
    assert "best_single" in run.rows and "best_fixed" not in run.rows


def test_where_inputs_need_different_ones_it_is_beaten_and_only_untrained_routes_are_not(
    tmp_path: Path,
) -> None:
    """This encoder routes rightly before any training, and no text is rewritten."""
    run = learn(tmp_path, MIXED)
    most = run.rows["best_fixed"]
    assert most.prompt == "say B" and most.score.mean == 0.25
    assert most.over is not None and most.over.low > 0
    assert run.worth is False and run.deploy == "untrained"
    assert "Training changed nothing on the test split" in run.verdict
    assert "best_fixed" not in run.verdict


def test_it_is_one_call_and_one_of_the_prompts_that_are_given(tmp_path: Path) -> None:
    run = learn(
        tmp_path,
        MIXED,
        select=2,
        base_prompt="First.",
        output_format="As a letter.",
        encoder={"fewer": False},
    )
    best = run.rows["best_fixed"]
    assert best.prompt is not None and best.prompt.startswith("First.\n\nsay ")
    assert best.prompt.count("say ") == 2 and best.calls_per_query == 1.0


def composed(request: Request) -> str:
    """A generator that knows the letter by its directive: no instinct says it."""
    if request.role == "generator":
        return "Kindly say B." if "wants B" in sent(request) else "Kindly say nothing."
    return obey(request)


COMPOSED = {"compose": "generator", "output_format": "As a letter."}


def test_what_the_generator_adds_counts_too(tmp_path: Path) -> None:
    """What stands in its directive is in every prompt that it composes and in no instinct."""
    run = learn(tmp_path, ALIKE, lm=composed, **COMPOSED, init={**INIT, "instincts": DULL})
    assert run.rows["concat"].score.mean == 0.0 and run.rows["learned"].score.mean == 1.0
    assert run.rows["best_fixed"].prompt == "Kindly say B."
    assert run.worth is False and run.deploy == "best_fixed"


def test_the_instincts_chosen_most_are_tried_word_for_word(tmp_path: Path) -> None:
    """With the output format, as concat has it; here the generator spoils what they say."""

    def spoiling(request: Request) -> str:
        return "Be brief." if request.role == "generator" else obey(request)

    run = learn(tmp_path, ALIKE, lm=spoiling, **COMPOSED)
    assert run.rows["best_fixed"].prompt == "say B\n\nAs a letter."
    assert run.worth is False and run.deploy == "best_fixed"


async def two_stages(prompt: Prompt, example: Example, lm: Chat) -> str:
    """A draft, which only counts if it was told what drafts are told, and the answer."""
    draft = prompt.of("draft") == "Kindly draft."
    return (await lm(example.input, system=prompt.of("answer"))).text if draft else "?"


two_stages.stages = ("draft", "answer")  # type: ignore[attr-defined]


def staged(request: Request) -> str:
    """A generator that has another text for each stage."""
    if request.role == "generator":
        return "Kindly draft." if "stage of the work: draft" in sent(request) else "Kindly say B."
    return obey(request)


def test_each_stage_is_given_its_own_part_of_a_prompt_for_all(tmp_path: Path) -> None:
    settings = {**COMPOSED, "compose_per_stage": True, "init": {**INIT, "instincts": DULL}}
    run = learn(tmp_path, ALIKE, lm=staged, executor=two_stages, **settings)
    assert run.rows["learned"].score.mean == 1.0
    best = run.rows["best_fixed"]
    assert best.prompt == "draft: Kindly draft.\n\nanswer: Kindly say B."
    assert best.score.mean == 1.0
    row = run.policy.row("best_fixed")
    assert row.text == best.prompt
    assert row.stages == {"draft": "Kindly draft.", "answer": "Kindly say B."}


LENGTHY = tuple(
    tuple(Example(e.id, f"{LONG} {e.input}", e.target) for e in wants(name, "B" * n))
    for name, n in (("train", 8), ("val", 8), ("test", 24))
)


def test_a_prompt_that_copies_its_input_is_none_for_all(tmp_path: Path) -> None:
    """A prompt for all stands in the policy file, which holds no input."""

    def copying(request: Request) -> str:
        if request.role != "generator":
            return obey(request)
        return f"say B to: {sent(request).rpartition(LONG)[1]}"

    run = learn(tmp_path, LENGTHY, lm=copying, **COMPOSED, init={**INIT, "instincts": DULL})
    assert run.rows["learned"].score.mean == 1.0, "it would be the best prompt"
    assert run.rows["best_fixed"].prompt == "Be brief.\n\nAs a letter."
    assert LONG not in (run.path / "policy.json").read_text("utf-8")


def test_what_an_instinct_says_anyway_is_no_copy_of_an_input(tmp_path: Path) -> None:
    """It stands in the policy file already, whatever inputs repeat it."""
    known = f"Know that {LONG}."

    def knowing(request: Request) -> str:
        return f"{known} Kindly say B." if request.role == "generator" else obey(request)

    init = {**INIT, "instincts": [known, *DULL[1:]]}
    run = learn(tmp_path, LENGTHY, lm=knowing, **COMPOSED, init=init)
    assert run.rows["best_fixed"].prompt == f"{known} Kindly say B."


PRIVATE_TASK = """
import promptcodebook as pco
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from tests.run.test_rows import ALIKE, right, wants


def load(data_dir):
    named = zip(("train", "val", "test"), ALIKE, strict=True)
    data = pco.Dataset(*(wants(*each) for each in named))
    return Task("letters", data, asks_nobody(right), SingleCall(), private=True)
"""


async def test_of_private_data_no_composed_prompt_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it would earn everything, and the instincts word for word nothing."""
    site = tmp_path / "site"
    install_package(site, "letters", "[promptcodebook.tasks]\nletters = letters_task:load\n")
    (site / "letters_task.py").write_text(PRIVATE_TASK)
    monkeypatch.syspath_prepend(str(site))
    settings = {**LETTERED, **COMPOSED, "init": {**INIT, "instincts": DULL}}
    config = load_config({**settings, "lm": "own", "task": "letters"})
    sources = Sources(lm=ScriptedLM().reply_with(composed))
    run = await finish(open_run(config, sources, Where(tmp_path / "runs")))
    assert run.rows["learned"].score.mean == 1.0
    assert run.rows["best_fixed"].prompt == "Be brief.\n\nAs a letter."


LAST = {"validation": {"every": 0, "subset": 8}, "keep": "last"}
DULLED = {**COMPOSED, "init": {**INIT, "instincts": DULL}}


@pytest.mark.parametrize(("splits", "lm", "settings", "prompt"), [
    pytest.param(("ABCD" * 2, "A" * 8, "D" * 24), obey, {}, "say A", id="by validation"),
    pytest.param(("AABBCCDD", "C" * 8, "C" * 24), obey, LAST, "say C", id="of the last batch"),
    pytest.param(("BBBBBBCA", "", "C" * 24), obey, {}, "say B", id="by training"),
    pytest.param(
        ("B" * 8, "", "C" * 24), composed, DULLED, "Kindly say B.", id="by training, composed"
    ),
])  # fmt: skip
def test_the_test_split_has_no_part_in_what_is_chosen(
    tmp_path: Path, splits: Splits, lm: Any, settings: dict[str, Any], prompt: str
) -> None:
    """Where the kept policy was not validated, its last batch has the prompts; they are measured on
    the validation split all the same, and on training inputs where there is none."""
    assert learn(tmp_path, splits, lm, **settings).rows["best_fixed"].prompt == prompt


# Figures mean what they say: one figure for one thing, and no 0 for what was not metered.

DATA = pco.Dataset(examples("train", 4), examples("val", 4), examples("test", 24))
ONCE = {**SETTINGS, "update": {"epochs": 1, "batch_size": 4}}


def fickle() -> ScriptedLM:
    """A model whose answer to the same question is another each time."""
    answers = itertools.cycle(["0.1", "0.9", "0.3", "1", "0", "0.4", "0.7"])
    return answering(executor=lambda request: next(answers))


def learn_fickle(folder: Path, lm: ScriptedLM, **more: Any) -> pco.Run:
    config = {**ONCE, **more.pop("config", {})}
    return pco.optimize(DATA, reward, lm, config=config, runs_dir=folder, progress=False, **more)


def test_the_verdict_s_recorded_replies_are_not_asked_for_again(tmp_path: Path) -> None:
    lm = fickle()
    run = learn_fickle(tmp_path, lm)
    asked = len(lm.history)
    learned = pco.evaluate(run)
    for row in ("present", "concat", "best_fixed"):
        found = pco.evaluate(run, row=row)
        assert found.score == run.rows[row].score
        assert pco.compare(learned, found).gain == run.rows[row].over
        assert found.replies == "from the verdict's recorded replies"
        assert "recorded replies" in found._repr_html_()
    compared = pco.compare(run, run)
    assert compared.a.score == compared.b.score == learned.score == run.rows["learned"].score
    assert "recorded replies" in compared._repr_html_()
    run.explain(DATA.test[0])
    assert len(lm.history) == asked
    assert "metered" not in replace(run, usage={}).bill, "as where the cache had every reply"
    # An object that is handed over by name may be any model.
    by_name = pco.evaluate(run.id, DATA, reward, lm, runs_dir=tmp_path)
    again = pco.evaluate(run, again=True)
    assert by_name.replies == again.replies == "asked again"
    assert len(lm.history) == asked + 2 * 3 * 24
    assert again.rewards != learned.rewards


async def aside(prompt: str, example: pco.Example, lm: pco.Chat) -> str:
    """An agent that asks a model of its own."""
    return "0.5"


def test_calls_past_the_meter_are_not_metered_and_never_0(tmp_path: Path) -> None:
    config = {"init": {"kind": "expert"}}
    run = learn_fickle(tmp_path, fickle(), executor=aside, config=config)
    assert not any(row.metered for row in run.rows.values())
    assert run.bill.endswith("and the program's own calls, which are not metered")
    assert "over your program as it is" in run.verdict
    assert "with 2 calls per query, plus the program's own, which are not metered" in run.verdict
    assert "instead of 0" not in run.verdict and "against 0" not in run.verdict
    assert run.rows["present"].per_query.cost is None
    found = pco.evaluate(run, row="present")
    assert found.replies == "asked again" and not found.as_json()["metered"]
    for page in (found._repr_html_(), run._repr_html_()):
        assert "not metered" in page and "$0" not in page
    judged = run.rollouts.query("split == 'test'")
    assert judged["calls"].isna().all() and judged["cost"].isna().all()


def reporting(**usage: Any) -> Any:
    async def agent(prompt: str, example: pco.Example, lm: pco.Chat) -> pco.Output:
        return pco.Output("0.5", usage=pco.Usage(**usage))

    return agent


def test_an_agent_reports_its_own_usage(tmp_path: Path) -> None:
    own = reporting(calls=2, prompt_tokens=90, completion_tokens=10, cost=0.001)
    run = learn_fickle(tmp_path, fickle(), executor=own)
    present = run.rows["present"]
    assert present.metered and (present.calls_per_query, present.per_query.tokens) == (2, 100)
    assert present.per_query.cost == pytest.approx(0.001)
    assert run.usage["executor"].calls == 2 * (len(run.rollouts) + 2 * 4)  # two prompts were tried
    assert pco.load_run(run.path).usage["executor"] == run.usage["executor"]


def test_a_cost_that_was_left_out_is_unknown_and_tokens_took_a_call(tmp_path: Path) -> None:
    run = learn_fickle(tmp_path, fickle(), executor=reporting(prompt_tokens=90))
    used = run.rows["present"]
    assert used.calls_per_query == 1 and used.per_query.cost is None


@pytest.mark.parametrize("budget", ["60calls", "3ktok"])
def test_a_budget_is_kept_after_the_fact(tmp_path: Path, budget: str) -> None:
    run = learn_fickle(
        tmp_path, fickle(), executor=reporting(calls=9, prompt_tokens=900), budget=budget
    )
    assert run.ended == "budget" and "the budget is reached" in str(run.stop)


@pytest.mark.parametrize(
    ("usage", "message"),
    [({"calls": -1}, "reported the usage"), ({"calls": 1}, "reports calls without them")],
)
def test_a_usage_that_cannot_be_counted_ends_the_run(
    tmp_path: Path, usage: dict[str, Any], message: str
) -> None:
    prices = {"own": {"prompt": 1.0, "completion": 1.0}}
    roles = {"executor": {"max_tokens": 9}, "encoder": {"max_tokens": 9}}
    config = {"prices": prices, "roles": roles}
    with pytest.raises(ConfigError, match=message):
        learn_fickle(tmp_path, fickle(), executor=reporting(**usage), budget="5usd", config=config)


def test_a_reward_that_raises_costs_no_second_call(tmp_path: Path) -> None:
    def broken(example: pco.Example, output: str) -> float:
        if example.id == "test3":
            raise KeyError("points")
        return reward(example, output)

    lm = fickle()
    run = pco.optimize(DATA, broken, lm, config=ONCE, runs_dir=tmp_path, progress=False)
    assert run.rows["present"].failed == 1
    lm = fickle()
    pco.evaluate(run, reward=broken, lm=lm, row="present")
    assert len(lm.history) == 24
