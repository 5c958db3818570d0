"""What each part of the method adds: parts left out, the lean preset, the operators."""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from bench.controls import run_broken
from promptcodebook.assemble import Sources, simulated_model
from promptcodebook.calls import Message, Request
from promptcodebook.config import load_config
from promptcodebook.errors import ConfigError, RequestRefused
from promptcodebook.lm.spec import any_simulated, parse_spec
from promptcodebook.paper.experiments import what_learns
from promptcodebook.paper.experiments.experiment import ExperimentRequest, Results
from promptcodebook.paper.experiments.lab import CellResult, Lab, open_lab
from promptcodebook.paper.experiments.operators import OPERATORS
from promptcodebook.paper.experiments.page import Page, PageTable, markdown, read_table
from promptcodebook.paper.experiments.reproduce import experiment_named, measure
from promptcodebook.paper.experiments.teacher import HouseRule, Teacher, rules_in
from promptcodebook.paper.experiments.what_learns import EXPERIMENT, one_topic, worlds
from promptcodebook.paper.simulated.executor import chance_of, obey
from promptcodebook.paper.simulated.world import SimulatedSettings, World
from promptcodebook.paper.tasks.constraints import task as constraints
from promptcodebook.run.opening import Where
from promptcodebook.store.run import RunStore
from promptcodebook.types import Output, Rewrite, Trace
from tests.build.obedient import Obedient

# The scripted teacher, and the worlds of `what-learns`: with an executor that obeys one order, and
# of the simulated model.

SPEC = "http://127.0.0.1:9/v1#scripted"


def measured(folder: Path, *names: str) -> Results:
    def cells(order: ExperimentRequest, spec: str) -> list[Any]:
        return [c for c in EXPERIMENT.cells(order, spec) if c.name in names]

    with closing(open_lab(folder, SPEC, lm=Obedient())) as lab:
        order = ExperimentRequest(replace(EXPERIMENT, cells=cells), "default", 1)
        return measure(order, lab, lambda _: None)


def earned(results: Mapping[str, CellResult], name: str) -> float:
    return fmean(results[name]["rewards"])


@pytest.mark.slow
def test_a_sound_teacher_gains_and_one_that_changes_nothing_does_not(
    tmp_path: Path,
) -> None:
    arms = ("sound", "updater-identity", "critic-silent")
    found = measured(tmp_path, *(f"control/{arm}/0" for arm in arms))
    assert not found.missing
    sound, *broken = (earned(found.results, f"control/{arm}/0") for arm in arms)
    # Three of the six orders can be obeyed, and the route is not always right.
    assert sound > 0.2
    assert broken == [0.0, 0.0]
    page = markdown(EXPERIMENT.page(found))
    assert "rules, no language model" in page
    assert "| control | updater-identity | +0." in page


def test_a_part_is_left_out_by_an_operator_or_by_a_setting() -> None:
    changes, named = read_table("what_learns")["real"]["arms"], set[str]()
    for world in worlds():
        assert world.argument.endswith(".")
        named |= {world.part} if world.expected == "matters" else set()
        assert set(world.arms) <= changes.keys() | OPERATORS.keys()
    assert named == {"attribution", "ψ", "θ", "φ", "r̄", "ε"}
    assert {w.part for w in worlds() if w.expected == "idle"} >= named
    cells = EXPERIMENT.cells(ExperimentRequest(EXPERIMENT, "default", 2), SPEC)
    assert len({cell.name for cell in cells}) == len(cells)


def test_the_first_codebooks_hold_what_their_world_says() -> None:
    named = {world.name: world for world in worlds()}
    first = what_learns.first_instincts
    assert rules_in(" ".join(first(named["control"]))) == []
    harmed = rules_in("\n".join(first(named["blame-harmful"])))
    assert [bool(rule.when) for rule in harmed] == [True] * 3 + [False] * 2
    assert HouseRule("in Chinese", "cancelling an order") in harmed
    assert HouseRule("with a Python program") in rules_in("\n".join(first(named["theta-misled"])))


def test_a_smaller_draw_of_messages_lies_in_a_larger_one() -> None:
    small, large = one_topic(2, 0, 1), one_topic(4, 1, 3)
    assert len(small.train) == 12
    assert {e.id for e in small.train} < {e.id for e in large.train}


async def test_the_teacher_refuses_what_it_cannot_read() -> None:
    with pytest.raises(RequestRefused, match="templates `default`"):
        await Teacher()(Request("critic", (Message("user", "How are you?"),)))


async def test_it_reflects_for_gepa_by_the_last_rule_and_the_first_that_was_broken() -> None:
    first, last, broken = (str(HouseRule(order)) for order in ("in Latin", "in Dutch", "in Thai"))
    now = f"Answer the customer.\n{first}\n{last}"
    feedback = "House rule for messages about {} broken: The reply must be {}; it is not."
    told = [feedback.format("a refund", language) for language in ("Thai", "Finnish")]
    asked = "I provided an assistant with these instructions:\n```\n{}\n```\n" + "\n".join(told)

    async def reflected(text: str) -> list[str]:
        request = Request("updater", (Message("user", asked.format(text)),))
        return (await Teacher()(request)).text.strip("`\n").split("\n")

    new = broken.replace(".", " when the message is about a refund.")
    assert await reflected(now) == [last, new]
    assert await reflected("Answer the customer.") == [new]


def test_the_spec_of_the_teacher_is_no_simulated_model() -> None:
    config = load_config({"task": "houserules_six", "lm": "rules?updater=obedient"})
    made = simulated_model(config.task, one_topic(1, 0, 0), parse_spec(config.lm))
    assert isinstance(made, Teacher)
    assert not any_simulated([config.lm])
    with pytest.raises(ConfigError, match=r"'updatr' \(did you mean 'updater'\?\)"):
        simulated_model("", one_topic(1, 0, 0), parse_spec("rules?updatr=obedient"))


# The simulated half: its worlds begin as they say; its page shows all.


DATA = constraints.draw_constraints(2)
SHORT = {"epochs": 2, "batch_size": 6}
SETTINGS = SimulatedSettings(world=2)
WORLD = World("constraints", [e for _, split in DATA.items() for e in split], SETTINGS)


def worth(*texts: str) -> float:
    """The mean chance of a test input's demands under a prompt of these texts."""
    chances: list[float] = []
    for example in DATA.test:
        problem = WORLD.problem(example.input)
        obeyed = obey(WORLD, problem, " ".join(texts))
        for demand in problem.demands:
            about = frozenset(() if demand.skill is None else (demand.skill,))
            chances.append(chance_of(about, problem.needs, obeyed, SETTINGS))
    return sum(chances) / len(chances)


def test_a_mixed_codebook_holds_four_orders_that_help_and_four_that_harm() -> None:
    texts = what_learns.first_of("mixed", WORLD, 12, 2)
    right = [t for t in texts if t.startswith("When")]
    harmful = [t for t in texts if WORLD.skills.orders(t) and t not in right]
    assert (len(texts), len(right), len(harmful)) == (12, 4, 4)
    assert worth(*right) > worth() + 0.05
    assert sum(map(worth, harmful)) / 4 < worth() - 0.05


@pytest.mark.parametrize("size", [8, 16, 32])
def test_what_pays_late_is_the_last_eighth_of_a_codebook(size: int) -> None:
    texts = what_learns.first_of("late", WORLD, size, 2)
    paying = size // 8
    assert len(set(texts)) == size
    assert not WORLD.skills.orders(" ".join(texts[:-paying]))
    assert all(worth(text) > worth() + 0.03 for text in texts[-paying:])


async def test_a_flipped_reward_turns_a_share_of_the_demands() -> None:
    flips, wrong, whole = what_learns.FlippedChecks(0.3, 2), 0.0, 0
    for example in DATA.train:
        if demands := len(WORLD.problem(example.input).demands):
            whole += demands
            for text in ("hello", "a, b"):
                score = await flips(example, Output(text))
                wrong += abs(score.value - constraints.reward(example, text).value) * demands / 2
    assert 0.1 < wrong / whole < 0.35, "within an example two may cancel each other"


@pytest.mark.slow
def test_flipped_rewards_are_seen_in_training_and_never_in_a_test(tmp_path: Path) -> None:
    """The first state earns the same with them and without; what is learned differs."""
    few = {s.name: s for s in what_learns.setups()}
    noisy, sound = (
        what_learns.simulated_cell(replace(few[name], matters=(), idle=(), measured=()), 2, SHORT)
        for name in ("noise-0.3", "shipped")
    )
    lab = Lab(tmp_path, "simulated", None)
    made = [cell.measure(lab)["sound"] for cell in (noisy, sound)]
    assert made[0]["first"] == made[1]["first"]
    assert made[0]["calls"] != made[1]["calls"]


def test_each_arm_is_an_operator_or_listed_and_each_world_says_what_is_expected() -> None:
    listed = read_table("simulated_worlds")["arms"]
    for setup in what_learns.setups():
        assert setup.argument
        assert all((arm in OPERATORS) != (arm in listed) for arm in setup.arms), setup.name
    assert len({setup.name for setup in what_learns.setups()}) == len(what_learns.setups())


@pytest.mark.slow
def test_the_pages_count_the_rows_that_mattered_as_the_table_does() -> None:
    """Of those in which a part was expected to; controls of the whole loop are not among them."""
    root = Path(__file__).parents[3]
    page, readme = (root / p for p in ("docs/results/what-learns.md", "README.md"))
    counts: list[tuple[int, int]] = []
    for half in page.read_text("utf-8").split("\n## The simulated model\n"):
        found = re.findall(r"\| (matters|nothing, unexpectedly) \|$", half, re.M)
        counts.append((found.count("matters"), len(found)))
    (real, of_real), (simulated, of_simulated) = counts
    said = page.read_text("utf-8")
    assert f"In {real} of {of_real} rows where we expected a part to matter, it did" in said
    assert f"In simulated worlds, parts mattered in {simulated} of {of_simulated} such rows" in said
    claim = f"in {real} of the {of_real} comparisons where we expected a loss, and in "
    claim += f"{simulated} of {of_simulated} in simulated worlds"
    assert claim in " ".join(readme.read_text("utf-8").split())


def test_a_world_is_measured_with_all_arms_and_shown(tmp_path: Path) -> None:
    order = ExperimentRequest(EXPERIMENT, "quick", 1)
    lab = Lab(tmp_path, "simulated", None)
    names = ("sim/late-8/1", "sim/bare/1")
    listed = {cell.name: cell for cell in what_learns.simulated_cells(order)}
    results = {name: listed[name].measure(lab) for name in names}
    assert [*results["sim/bare/1"]] == ["sound", "phi-fixed"]
    page = markdown(Page("x", what_learns.simulated_blocks(Results(order, lab, results, {}))))
    assert "**Simulated.** Each of the 1 worlds" in page
    assert page.count("| late-8 |") == 3


# `lean`: what decides whether fewer calls are worth it, on figures made up for it.

LEAN = experiment_named("lean")


def run(reward: float, calls: int, row: str = "learned", tried: int = 0) -> dict[str, Any]:
    return {
        "rows": {row: {"rewards": [reward] * 600}, "untrained": {"rewards": [0.0] * 600}},
        "training": {"calls": calls},
        "by_role": {"critic": [10, 0]},
        "search": {"tried": tried},
        "stopped": "",
    }


def page(tmp_path: Path, **arms: list[dict[str, Any]]) -> tuple[str, list[PageTable]]:
    """The page of runs by arm: what was decided, and the tables."""
    named = ((f"simulated/{n}", made) for n, made in arms.items())
    results = {f"{n}/{k}": each for n, made in named for k, each in enumerate(made)}
    with closing(open_lab(tmp_path, "simulated")) as lab:
        made = LEAN.page(Results(ExperimentRequest(LEAN, "default", 1), lab, results, {}))
    texts = [block for block in made.blocks if isinstance(block, str)]
    [decided] = [text for text in texts if "set beforehand" in text]
    return decided, made.tables


@pytest.mark.parametrize(
    ("rewards", "calls", "met"),
    [
        ((0.5, 0.5), (490, 1000), True),
        ((0.5, 0.5), (510, 1000), False),
        ((0.7, 0.7), (510, 1000), False),
        ((0.5, 0.9), (490, 1000), False),
    ],
    ids=["as good at half the calls", "too many calls", "better, too many calls", "uncertain"],
)
def test_both_the_margin_and_the_share_of_calls_must_be_met(
    tmp_path: Path, rewards: tuple[float, ...], calls: tuple[int, int], met: bool
) -> None:
    lean, default = calls
    own = [run(reward, lean) for reward in rewards]
    decided, _ = page(tmp_path, lean=own, default=[run(0.5, default)] * 2)
    assert f"**{'met' if met else 'not met'}**" in decided


def test_gains_are_over_the_same_untrained_codebook_and_by_calls(tmp_path: Path) -> None:
    """A search with a single prompt is no row; one world that is missing is missing for both."""
    lean = [run(0.5, 500), run(0.5, 500), run(0.5, 500)]
    gepa, mipro = run(0.5, 250, "gepa", 2), run(0.5, 250, "mipro", 1)
    arms = {"lean": lean, "default": [run(0.5, 1000)] * 2, "gepa": [gepa], "mipro": [mipro]}
    _, (table, calls) = page(tmp_path, **arms)
    rows = {row[0]: row for row in table.rows}
    ours = ["`default`", "`full`"]
    assert list(rows) == [*ours, "GEPA (tried 2 to 2 prompts per run)"]
    assert [row[-1] for row in rows.values()] == ["2", "2", "1"]
    assert [row[6].split(" ")[0] for row in rows.values()] == ["+1.000", "+0.500", "+2.000"]
    assert calls.rows[0] == ["`default`", "490", "10", "0", "0", "500"]


def test_a_reader_s_model_is_measured_alone_and_every_setting_is_one() -> None:
    """SmolLM2 and the simulated worlds are one page; a model over HTTP needs neither."""
    order = ExperimentRequest(LEAN, "default", 1)
    small, other = (LEAN.cells(order, spec) for spec in ("smollm2", "http://127.0.0.1:1/v1#m"))
    halves = [{cell.name.partition("/")[0] for cell in cells} for cells in (small, other)]
    assert halves == [{"model", "simulated"}, {"model"}]
    worlds = {cell.settings["lm"] for cell in small if cell.name.startswith("simulated/lean/")}
    assert worlds == {"simulated?world=101", "simulated?world=102"}
    settings = [{**cell.settings} for cell in (*small, *other)]
    configs = [load_config(own) for own in settings if own.pop("form")]
    assert {config.preset for config in configs} == {"full", "lean", "small"}
    capped = [c for c in configs if c.optimizer != "pco" or c.preset == "small"]
    assert {config.budget.calls for config in capped} == {3050, 2150}


def test_on_this_machine_rules_teach_whoever_asks(tmp_path: Path) -> None:
    """Both our loop and GEPA learn rules from the same teacher, and pay for each call."""
    pytest.importorskip("gepa")
    with closing(open_lab(tmp_path, "smollm2", lm=Obedient())) as lab:
        listed = LEAN.cells(ExperimentRequest(LEAN, "quick", 1), "smollm2")
        cells = {cell.name: cell for cell in listed}
        lean, gepa = (cells[f"model/{name}/0"].measure(lab) for name in ("lean", "gepa"))
    assert any(text.startswith("Answer in ") for text in lean["instincts"])
    assert "routes" not in lean
    assert lean["by_role"].keys() == {"encoder", "executor", "critic", "updater"}
    assert gepa["search"]["tried"] >= 2 and gepa["training"]["calls"] <= 60


# Broken operators: each breaks what it says, in a short training on the simulated model.

CONFIG = load_config(
    {
        **{"preset": "full", "task": "constraints", "keep": "last"},
        "lm": "simulated?attribution_error=0.5",
        "update": {"epochs": 2, "batch_size": 12, "shared_by": 1},
        "explore": {"epsilon": 0.5},
        "validation": {"every": 0, "subset": 2},
        "verdict_examples": 2,
    }
)


def made(folder: Path, operator: str = "") -> tuple[list[Trace], list[Rewrite]]:
    with closing(RunStore.open(run_broken(operator, CONFIG, Sources(), Where(folder)))) as store:
        steps = list(store.steps(traces=True))
    return [t for s in steps for t in s.traces], [r for s in steps for r in s.rewrites]


def as_told(operator: str, traces: list[Trace], rewrites: list[Rewrite]) -> bool:
    """Whether a training looks as one with this operator must."""
    blamed = [(t.rollout.route.indices, t.gradients) for t in traces if t.rollout.route]
    fixed = {"codebook": "0123456789", "theta": "e", "phi": "g", "psi": "c"}
    part = fixed.get(operator.partition("-")[0], "")
    if part and operator.endswith("-fixed"):
        return not any(str(r.variable)[0] in part for r in rewrites)
    match operator:
        case "updater-identity":
            return not rewrites
        case "updater-blind":
            return all(r.gradient == "- Something in this text can be better." for r in rewrites)
        case "critic-silent":
            return not any(t.verdict and t.verdict.feedback for t in traces)
        case "scores-random":
            scores = [t.verdict.score for t in traces if t.verdict]
            return len(set(scores)) == len(scores) > 9
        case "blame-constant":
            return all(
                not (g.encoder or g.generator) and {*g.codebook} <= {z[0]} for z, g in blamed
            )
        case "blame-all":
            return all({*g.codebook} in (set(), {*z}) for z, g in blamed)
        case "no-exploration":
            return not any(t.rollout.route and t.rollout.route.explored for t in traces)
        case _:  # by what feedback says of it alone: it differs from what is sound
            return True


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Trace], list[Rewrite]]:
    return made(tmp_path_factory.mktemp("sound"))


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_breaks_what_it_says(
    operator: str, sound: tuple[list[Trace], list[Rewrite]], tmp_path: Path
) -> None:
    told = ["blame-random", "blame-lowest", "feedback-swapped", "ema-frozen", "success-frozen"]
    assert (operator in told) == as_told(operator, *sound), "only a broken loop looks like that"
    broken = made(tmp_path, operator)
    assert as_told(operator, *broken)
    assert broken != sound
