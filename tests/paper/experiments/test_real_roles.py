"""`real-roles`: a model in one role after another, with a scripted model and on real weights."""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from promptcodebook.calls import LM, Reply, Request, Usage
from promptcodebook.paper.experiments import real_roles
from promptcodebook.paper.experiments.experiment import ExperimentRequest, Results
from promptcodebook.paper.experiments.lab import CellResult, open_lab
from promptcodebook.paper.experiments.page import markdown
from promptcodebook.paper.experiments.real_roles import EXPERIMENT, Retold, arms, mixed
from promptcodebook.paper.experiments.reproduce import measure, read_results
from promptcodebook.paper.tasks.houserules import task as houserules
from promptcodebook.types import Example, Output, Score
from tests.build.obedient import Obedient

COMPLAINT = re.compile(r"messages about (.+?) broken: The reply must be (.+?);")
ADVICE = re.compile(r"When the message is about (.+?), the reply must be (.+?)\.")


class Able(Obedient):
    """Also a critic that turns the complaint round in one line, and an updater that orders it."""

    async def __call__(self, request: Request) -> Reply:
        asked = request.messages[-1].content
        if request.role == "critic":
            [(when, what)] = COMPLAINT.findall(asked)
            said = f"When the message is about {when}, the reply must be {what}.\nAnd so on"
        elif request.role == "updater":
            orders = re.findall(r"- (Answer .+ when .+)", asked)
            said = orders[0] if orders else asked.partition("Instruction: ")[2].split("\n")[0]
        else:
            return await super().__call__(request)
        return Reply(said, usage=Usage(1, 9, 9))


def run(folder: Path, lm: LM | None, spec: str, preset: str, *names: str) -> Results:
    def cells(order: ExperimentRequest, spec: str) -> list[real_roles.Cell]:
        return [real_roles.cell(a, 0, spec, preset) for a in arms() if a.name in names]

    with closing(open_lab(folder, spec, lm=lm)) as lab:
        order = ExperimentRequest(replace(EXPERIMENT, cells=cells), preset, 1)
        return measure(order, lab, lambda _: None)


def earned(results: Mapping[str, CellResult], name: str) -> float:
    return fmean(results[f"{name}/0"]["rewards"])


@pytest.mark.slow
def test_a_model_that_can_criticise_and_rewrite_gains_and_an_updater_that_changes_nothing_does_not(
    tmp_path: Path,
) -> None:
    names = ("rules", "both", "both-identity")
    found = run(tmp_path, Able(), "http://127.0.0.1:9/v1#scripted", "default", *names)
    assert not found.missing
    rules, both, identity = (earned(found.results, name) for name in names)
    assert both >= 0.5 * rules > 0.1 and identity == 0.0
    page = EXPERIMENT.page(found)
    [table] = [t for t in page.tables if t.name == "both"]
    assert [row[-1] for row in table.rows] == ["1"] * 3


@pytest.mark.local
def test_smollm2_rewrites_a_codebook_that_pays_and_an_updater_that_changes_nothing_does_not(
    tmp_path: Path,
) -> None:
    """The slow control on real weights: three batches of twelve messages."""
    names = ("both", "both-identity")
    found = run(tmp_path, None, "smollm2", "quick", *names)
    assert not found.missing
    both, identity = (found.results[f"{name}/0"] for name in names)
    assert fmean(both["rewards"]) > 0.0 == fmean(identity["rewards"]), both["instincts"]
    assert both["kept"][0] > 0
    assert set(both["instincts"]) != set(identity["instincts"])


@pytest.mark.parametrize(("how", "said"), [
    ("unstated", "The reply is not what is wanted. It seems to be English."),
    (
        "false",
        "House rule for messages about an invoice or a receipt broken: The reply must be Chinese; "
        "it has 0 Han characters and 0 kana.",
    ),
    (
        "foreign",
        "House rule for messages about an invoice or a receipt broken: The reply must be a rhyme; "
        "it is none.",
    ),
])  # fmt: skip
async def test_feedback_that_hides_the_rule_or_names_another(how: str, said: str) -> None:
    async def inner(example: Example, output: Output) -> Score:
        return houserules.reward(example, output.text)

    asked = Example("x", "my invoice", fields={"topics": ["invoice"]})
    english = "Thank you for your message. We will send the invoice to you."
    retold = await Retold(inner, how)(asked, Output(english))  # pyright: ignore[reportArgumentType]
    assert (retold.value, retold.feedback) == (0.0, said)
    spanish = "Hola, gracias por su mensaje. La factura está en el correo de la tienda."
    assert (await Retold(inner, "false")(asked, Output(spanish))).value == 1.0


def test_only_what_an_arm_names_is_taken_from_the_set_of_worked_examples() -> None:
    ours = mixed(())
    some = mixed(["critic", "updater"])
    changed = {name for name in ours.sources if ours.sources[name] != some.sources[name]}
    assert changed == {"critic", "updater"}
    assert (ours.one_line, some.one_line) == ((), ("critic",))
    goals = real_roles.read_table("real_roles")["goal"]["arms"]
    named = {name for arm, controls in goals.items() for name in (arm, *controls)}
    assert named <= {each.name for each in arms()}


def test_the_page_states_no_share_of_a_gain_that_rules_do_not_have() -> None:
    kept = read_results(Path(__file__).parents[3] / "docs" / "results" / "real-roles.json.zst")
    goal = "of the rules' gain. Controls:"
    assert goal in markdown(EXPERIMENT.page(kept), "real-roles")
    for gain in (0.0, -1.0):  # nothing, and a loss
        idle = {n: r | {"rewards": [1 + gain], "first": [1.0]} for n, r in kept.results.items()}
        page = markdown(EXPERIMENT.page(replace(kept, results=idle)), "real-roles")
        assert goal not in page and "nan" not in page


def test_the_second_task_is_scored_by_ifeval_s_checks() -> None:
    pool = real_roles.pool_messages()
    assert (len(pool.train), len(pool.val), len(pool.test)) == (36, 0, 36)
    assert len({e.id for e in (*pool.train, *pool.test)}) == 72
    kept = {"season tickets": "Dear guest, of course.", "lost property": "O moon above the pool"}
    for example in pool.test:
        topic = example.id.rpartition(" ")[0]
        wrong = real_roles.pool_reward(example, "We do not know that yet.")
        assert wrong.value == 0.0
        assert f"about {topic} broken: The reply must be " in wrong.feedback
        if topic in kept:
            assert real_roles.pool_reward(example, kept[topic]) == Score(1.0)
