"""The plain sentence at the end: every way a run can come out, and what it evaluates and stores."""

import random
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from promptcodebook.assemble import Assembled, Plan
from promptcodebook.base.intervals import Interval, mean_interval
from promptcodebook.calls import Request, Usage
from promptcodebook.data import Dataset
from promptcodebook.lm.scripted import Scripted, ScriptedLM
from promptcodebook.lm.stack import Models, StackResources
from promptcodebook.method.policy import FixedPrompt
from promptcodebook.method.templates import load_templates
from promptcodebook.optimizers.base import Problem, Result
from promptcodebook.progress import Phase
from promptcodebook.run.decision import (
    JudgingTerms,
    RowSource,
    conclude,
    decide,
    judge,
    row_of,
    verdict_power,
)
from promptcodebook.run.verdict import Conclusion, VerdictRow
from promptcodebook.store.events import Amended, Compared, Concluded, Stepped, fold
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.tasks.program import SingleCall
from promptcodebook.tasks.task import Task, asks_nobody
from promptcodebook.types import (
    Codebook,
    Evaluation,
    Example,
    Parameters,
    PromptLength,
    Rollout,
    Route,
    Step,
)
from tests.build.cases import table
from tests.build.method import config, examples, sent

SPENT = Usage(calls=1, prompt_tokens=100, completion_tokens=20, cost=0.001, latency_s=0.5)
ROUTED = Usage(calls=3, prompt_tokens=300, completion_tokens=60, cost=0.003, latency_s=1.5)
NAMES = ("present", "concat", "untrained", "learned")


def evaluation(name: str, rewards: list[float | None], usage: Usage = SPENT) -> Evaluation:
    rollouts = tuple(
        Rollout(f"e{i}", prompt="two words", output="a", reward=r, usage=usage)
        for i, r in enumerate(rewards)
    )
    return Evaluation(name, "test", rollouts)


def four(
    present: float, concat: float, untrained: float, learned: float, n: int = 40
) -> list[RowSource]:
    """Four rows of n examples, each with a sway of its own, so that differences have a width."""
    levels = (present, concat, untrained, learned)
    spent = (SPENT, SPENT, ROUTED, ROUTED)
    return [
        RowSource(
            f"the {name} prompt",
            evaluation(
                name, [level + 0.1 * ((i * (row + 2)) % 7 - 3) / 3 for i in range(n)], usage
            ),
        )
        for row, (name, level, usage) in enumerate(zip(NAMES, levels, spent, strict=True))
    ]


def judged(*levels: float, n: int = 40) -> Conclusion:
    return conclude(four(*levels, n=n), JudgingTerms())


def one_call(
    present: float, concat: float, untrained: float, best_single: float, learned: float
) -> list[RowSource]:
    """The rows of preset small, of one call each; the untrained routes were asked again once."""
    *others, last = four(present, concat, untrained, learned)
    sway = [best_single + 0.1 * ((i * 11) % 7 - 3) / 3 for i in range(40)]
    single = RowSource("the best_single prompt", evaluation("best_single", [*sway]))
    entries = [*others, single, last]
    for at, entry in enumerate(entries):
        rollouts = [replace(r, usage=SPENT) for r in entry.evaluation.rollouts]
        if entry.evaluation.name == "untrained":
            rollouts[0] = replace(rollouts[0], usage=replace(SPENT, calls=2))
        entries[at] = replace(entry, evaluation=replace(entry.evaluation, rollouts=tuple(rollouts)))
    return entries


def test_what_is_better_than_the_present_prompt_and_not_matched_is_worth_deploying() -> None:
    made = judged(0.3, 0.4, 0.4, 0.7)
    assert made.worth is True and made.deploy == "learned"
    gain, over = made.rows[-1].gain, made.rows[1].over
    assert gain is not None and gain.low < gain.mean < gain.high
    assert over is not None and (gain.mean, over.mean) == pytest.approx((0.4, 0.3), abs=0.02)
    assert made.rows[0].gain is made.rows[-1].over is None
    quoted = f"{gain.mean:+.3f} (95 % {gain.low:+.3f} to {gain.high:+.3f}, n = 40)"
    assert made.sentence.startswith(f"Worth deploying: {quoted} over the present prompt and +0.")
    assert "over the concat prompt and +0." in made.sentence
    assert made.sentence.endswith(
        "over the untrained prompt, at 3 calls and 360 tokens per query instead of 1 and 120."
    )


NO_GAIN = "So training shows no gain."


@pytest.mark.parametrize(
    ("levels", "deploy", "start", "message"), table(__file__, "not_worth_deploying")
)
def test_what_is_not_worth_deploying_is_told_from_what_is(
    levels: list[float], deploy: str, start: str, message: list[str]
) -> None:
    made = judged(*levels)
    assert made.worth is False and made.deploy == deploy
    assert made.sentence.startswith(start) and all(part in made.sentence for part in message)
    assert (NO_GAIN in made.sentence) is (deploy == "untrained")
    over = made.rows[1].over
    assert over is not None and (over.mean > 0) is (levels[1] < levels[3])


def test_a_cheaper_row_whose_own_gain_is_unclear_leaves_it_unclear() -> None:
    present, concat, untrained, learned = four(0.5, 0.5, 0.5, 0.56)
    # Right on half of the examples, wrong on the others: too wide to tell it from either.
    swings = [0.53 + (0.45 if i % 2 else -0.45) for i in range(40)]
    concat = replace(concat, evaluation=evaluation("concat", [*swings]))
    made = conclude([present, concat, untrained, learned], JudgingTerms())
    assert made.worth is False and made.deploy == ""
    assert made.sentence.startswith("Unclear: the learned prompt gains +0.")
    assert ", n = 40) over the present prompt, but shows no clear difference from the concat" in (
        made.sentence
    )
    assert ", n = 40). The concat prompt has no clear gain of its own: +0." in made.sentence
    assert made.sentence.endswith(", n = 40). More test examples are needed to tell.")
    assert made.headline().lines["next"].startswith("The concat prompt may do as well for no more")


def test_a_policy_of_one_call_must_be_clearly_better_than_every_other_row_of_one_call() -> None:
    """Preset small: each row costs one call. What the best single instinct does as well is no gain
    of the routing."""
    entries = one_call(present=0.383, concat=0.3, untrained=0.4, best_single=0.883, learned=0.883)
    made = conclude(entries, JudgingTerms())
    assert made.worth is False and made.deploy == "best_single"
    assert made.sentence.startswith(
        "No clear difference from the best_single prompt, at 1 call per query against 1: "
        "deploy that. The difference is "
    )
    clear = one_call(present=0.383, concat=0.3, untrained=0.4, best_single=0.5, learned=0.883)
    worth = conclude(clear, JudgingTerms())
    assert worth.worth is True and worth.deploy == "learned"
    ahead = [
        f"over the {name} prompt" for name in ("present", "concat", "untrained", "best_single")
    ]
    assert all(over in worth.sentence for over in ahead)


@pytest.mark.parametrize("untrained_calls", [3, 9])
def test_worth_deploying_and_nothing_changed_are_never_said_together(untrained_calls: int) -> None:
    """Not even where the untrained codebook costs so much more that it blocks nothing."""
    present, concat, _, learned = four(0.3, 0.4, 0.7, 0.7)
    dear = tuple(
        replace(r, usage=replace(ROUTED, calls=untrained_calls))
        for r in learned.evaluation.rollouts
    )
    same = RowSource("the untrained prompt", Evaluation("untrained", "test", dear))
    made = conclude([present, concat, same, learned], JudgingTerms())
    assert ("Worth deploying" in made.sentence) == (untrained_calls == 9)
    text = "Training changed nothing on the test split: the learned prompt and the untrained prompt"
    text = f"{text} earn the same on each of the 40 examples."
    assert (text in made.sentence) == (untrained_calls == 3)
    assert "changed nothing" not in judged(0.3, 0.4, 0.7, 0.7).sentence


def grouped(entries: list[RowSource], size: int) -> list[RowSource]:
    """The same rows, each so often in a row: copies of one input."""
    made = list[RowSource]()
    for entry in entries:
        rollouts = [r for r in entry.evaluation.rollouts for _ in range(size)]
        groups = tuple(r.example_id for r in rollouts)
        evaluation = replace(entry.evaluation, rollouts=tuple(rollouts), groups=groups)
        made.append(replace(entry, evaluation=evaluation))
    return made


@pytest.mark.parametrize("size", [2, 5, 10])
def test_copies_of_test_inputs_count_once(size: int) -> None:
    alone = four(0.3, 0.4, 0.4, 0.7, n=24)
    copies, once = (conclude(rows, JudgingTerms()) for rows in (grouped(alone, size), alone))
    for copied, row in zip(copies.rows[1:], once.rows[1:], strict=True):
        for ours, theirs in ((copied.gain, row.gain), (copied.over, row.over)):
            assert (ours is theirs is None) or (ours and theirs and ours.n == theirs.n == 24)
            assert ours is None or theirs is None or ours.low == pytest.approx(theirs.low)
    assert f"{24 * size} test inputs, 24 independent" in copies.headline().lines["gain"]
    assert "test inputs, 24" not in once.headline().lines["gain"]


def test_few_independent_inputs_make_no_verdict_however_many_copies_there_are() -> None:
    made = conclude(grouped(four(0.1, 0.1, 0.1, 0.9, n=12), 8), JudgingTerms())
    assert made.worth is None
    assert "at least 20 independent test inputs, but there are 12 among 96." in made.sentence


@pytest.mark.parametrize("n", [1, 8, 19])
def test_below_twenty_examples_there_are_figures_and_no_verdict(n: int) -> None:
    made = judged(0.0, 0.0, 0.0, 1.0, n=n)
    assert made.worth is None and made.deploy == ""
    assert (
        f"No verdict: it needs at least 20 independent test inputs, but there are {n}."
        in made.sentence
    )
    assert "The learned prompt shows +" in made.sentence
    assert f", n = {n}) over the present prompt, at 3 calls and 360 tokens" in made.sentence
    assert len(made.rows) == 4 and all(row.score.n == n for row in made.rows)
    assert judged(0.1, 0.1, 0.1, 0.9, n=20).worth is True, "twenty are enough"
    none = conclude([], JudgingTerms())
    assert none.worth is None and "no test split" in none.sentence


def test_the_share_of_fallback_routes_stands_in_the_rows_and_is_warned_of_above_a_fifth() -> None:
    def routed(fallbacks: int) -> Conclusion:
        *others, learned = four(0.3, 0.4, 0.4, 0.7)
        rollouts = tuple(
            replace(r, route=Route((0, 1), fallback=i < fallbacks))
            for i, r in enumerate(learned.evaluation.rollouts)
        )
        evaluation = replace(learned.evaluation, rollouts=rollouts)
        return conclude([*others, replace(learned, evaluation=evaluation)], JudgingTerms())

    few, many = routed(8), routed(9)
    assert few.rows[-1].fallbacks == pytest.approx(0.2)
    assert few.rows[0].fallbacks is None
    assert "Beware" not in few.sentence
    assert "Beware: for 22 % of the inputs the encoder named no valid route" in many.sentence


def test_a_row_with_one_prompt_for_every_input_holds_it() -> None:
    *others, learned = four(0.3, 0.4, 0.4, 0.7)
    rollouts = tuple(
        replace(r, prompt=f"for {i}", route=Route((0, 1)))
        for i, r in enumerate(learned.evaluation.rollouts)
    )
    learned = replace(learned, evaluation=replace(learned.evaluation, rollouts=rollouts))
    rows = {row.name: row for row in conclude([*others, learned], JudgingTerms()).rows}
    assert rows["concat"].prompt == "two words" and rows["learned"].prompt is None
    once = (rollouts[0], *(replace(r, route=None, prompt="for 0") for r in rollouts[1:]))
    assert row_of(replace(learned.evaluation, rollouts=once), None, JudgingTerms()).prompt is None
    varied = tuple(replace(r, route=None) for r in rollouts)
    assert row_of(replace(learned.evaluation, rollouts=varied), None, JudgingTerms()).prompt is None
    alike = tuple(replace(r, prompt="the same") for r in rollouts)
    assert row_of(replace(learned.evaluation, rollouts=alike), None, JudgingTerms()).prompt is None


def test_rows_are_what_the_results_are_whatever_their_names() -> None:
    """A verdict over another optimizer's result: no row has a name it must have."""
    base, result = four(0.3, 0.4, 0.4, 0.7)[::3]
    other = replace(result, evaluation=replace(result.evaluation, name="gepa"))
    base = replace(base, title="zero-shot (no prompt)")
    made = conclude([base, other], JudgingTerms(simulated=True))
    assert made.worth is True and made.deploy == "gepa"
    assert made.sentence.startswith("On the simulated model: Worth")
    assert "over zero-shot (no prompt), at" in made.sentence
    assert [row.name for row in made.rows] == ["present", "gepa"]


def rows_at(gain: Interval, over: Interval | None = None, calls: float = 1.0) -> list[VerdictRow]:
    """Present, a rival with a clear gain, and a result; by their intervals alone."""
    nothing, clear = Interval(0.5, 0.4, 0.6, 40), Interval(0.3, 0.2, 0.4, 40)
    present, rival, result = (
        VerdictRow(name, nothing, None, 0.5, 0, 0, SPENT, 1.0, title=name)
        for name in ("present", "rival", "learned")
    )
    rival = replace(rival, gain=clear, over=over or clear, calls_per_query=calls)
    return [present, rival, replace(result, gain=gain, calls_per_query=3.0)]


def test_an_interval_that_ends_at_zero_holds_no_difference() -> None:
    """The exact test's intervals end at 0 itself, where examples tie."""
    up, down = Interval(0.2, 0.0, 0.4, 40), Interval(-0.2, -0.4, 0.0, 40)
    better = Interval(0.2, 0.1, 0.4, 40)
    assert decide(rows_at(better))[1:] == (True, "learned")
    assert decide(rows_at(up))[1:] == (False, "rival")
    assert "is worse" not in decide(rows_at(down))[0]
    assert "no clear gain" in decide(rows_at(down))[0]
    assert decide(rows_at(better, over=up))[1:] == (False, "rival")
    assert "No clear difference from rival" in decide(rows_at(better, over=down))[0]
    # Up to half a call more it is the same; a row of clearly more calls decides nothing.
    for calls in (2.5, 3.0, 3.49):
        assert decide(rows_at(better, over=up, calls=calls))[1:] == (False, "rival")
    assert decide(rows_at(better, over=down, calls=3.5))[1] is True
    # Nor does a rival whose own gain ends at zero become the row to deploy.
    present, rival, learned = rows_at(better, over=up)
    assert decide([present, replace(rival, gain=up), learned])[1:] == (False, "")


def test_without_a_gain_a_row_of_no_more_calls_with_a_clear_gain_is_named() -> None:
    """A dearer row is nothing to send a user to."""
    level = Interval(0.0, -0.1, 0.1, 40)
    for calls, deploy in ((1.0, "rival"), (3.0, "rival"), (3.49, "rival"), (3.5, "present")):
        assert decide(rows_at(level, over=level, calls=calls))[2] == deploy


def test_of_several_rows_that_match_the_cheapest_and_then_the_best_is_named() -> None:
    """Rivals of the same calls as rows go: all of them match, and gain clearly."""
    level = Interval(0.0, -0.1, 0.1, 40)
    present, rival, learned = rows_at(Interval(0.4, 0.3, 0.5, 40), over=level)
    better = replace(rival, name="better", gain=Interval(0.35, 0.25, 0.45, 40))
    dearer = replace(rival, name="dearer", calls_per_query=2.0, gain=Interval(0.6, 0.5, 0.7, 40))
    assert decide([present, dearer, rival, better, learned])[2] == "better"
    assert decide([present, better, rival, dearer, learned])[2] == "better"
    lost = replace(learned, gain=level)
    assert decide([present, dearer, rival, better, lost])[2] == "better"


def test_a_row_counts_failures_as_the_floor_usage_per_query_and_the_longest_prompt() -> None:
    failed = row_of(evaluation("learned", [1.0, None, 0.5, None]), None, JudgingTerms())
    assert (failed.score.mean, failed.answered, failed.failed) == (0.375, 0.75, 2)
    lengths = [PromptLength(10, 12), PromptLength(30, 30), PromptLength(20, 45, estimated=True)]
    rollouts = tuple(Rollout(f"e{i}", reward=1.0, prompt_length=x) for i, x in enumerate(lengths))
    long = row_of(Evaluation("learned", "test", rollouts), None, JudgingTerms())
    assert long.prompt_length == PromptLength(30, 45, estimated=True)
    known = row_of(evaluation("a", [1.0, 0.0]), None, JudgingTerms())
    assert (known.calls_per_query, known.per_query.tokens) == (1.0, 120)
    assert (known.per_query.calls, known.per_query.prompt_tokens) == (1, 100)
    assert known.per_query.latency_s == pytest.approx(0.5)
    assert known.per_query.cost == pytest.approx(0.001)
    unknown = row_of(evaluation("a", [1.0, 0.0], Usage(calls=1, cost=None)), None, JudgingTerms())
    assert unknown.per_query.cost is None and unknown.prompt_length is None


def test_a_gain_that_one_look_shows_must_be_clearer_at_the_second() -> None:
    """The rows are shown with 95 % as ever; the sentence decides by what it quotes."""
    draw = [0.05 + 0.3 * ((i * 7) % 20 - 9.5) / 10 for i in range(60)]
    present = RowSource("the present prompt", evaluation("present", [0.5] * 60))
    learned = RowSource("the learned prompt", evaluation("learned", [0.5 + d for d in draw]))
    first, second = (conclude([present, learned], JudgingTerms(look=look)) for look in (1, 2))
    assert first.worth is True and second.worth is False
    assert first.rows == second.rows
    assert "98.75 % -0.0" in second.sentence and "look" not in first.sentence
    assert second.sentence.endswith(
        " This is look 2 at the same test split, so its intervals are wider: "
        "98.75 % instead of 95 %."
    )


def test_a_reference_is_shown_and_decides_nothing() -> None:
    """The right instructions would block every policy, and be recommended."""
    present, concat, untrained, learned = four(0.3, 0.4, 0.4, 0.7)
    right = RowSource("the right instructions", evaluation("oracle", [1.0] * 40), reference=True)
    made = conclude([present, right, concat, untrained, learned], JudgingTerms())
    assert made.worth is True and made.deploy == "learned"
    assert "right instructions" not in made.sentence
    assert [row.name for row in made.rows if row.reference] == ["oracle"]
    none = conclude(
        [present, right, concat, untrained, replace(learned, evaluation=present.evaluation)],
        JudgingTerms(),
    )
    assert (
        none.worth is False and none.deploy != "oracle" and "changed nothing" not in none.sentence
    )


def test_a_verdict_is_one_table_of_words_for_terminals_notebooks_and_json() -> None:
    made = conclude(list(four(0.3, 0.4, 0.4, 0.7)), JudgingTerms())
    present, *_, learned = made.table.cells()
    row = made.rows[-1]
    assert row.gain is not None and made.rows[0].gain is None and present["gain"] == "-"
    assert " (95 % ".join((learned["gain"], learned["gain 95 %"])) in row.gain.text(signed=True)
    scores, costs = (made.table.cells(query=query)[-1] for query in (False, True))
    assert scores | costs == learned and "cost" in costs and "cost" not in scores
    html = made.table.only("gain", "cost").html("four", deploy="learned")
    assert learned["gain"] in html and "deploy" in html and learned["reward"] not in html
    assert [each["name"] for each in made.table.as_json()] == [each.name for each in made.rows]


def right(name: str, count: int, usage: Usage = SPENT) -> RowSource:
    """Right on `count` of forty inputs, by half a permutation of them."""
    rewards: list[float | None] = [1.0 if 7 * i % 40 < count else 0.0 for i in range(40)]
    return RowSource(f"the {name} prompt", evaluation(name, rewards, usage))


OVER = "than the present prompt; very likely between"


@pytest.mark.parametrize(
    ("entries", "title", "message"),
    [
        (
            [right("present", 8), right("concat", 10), right("learned", 34, ROUTED)],
            "Deploy: the learned prompt",
            {"gain": f"0.200 → 0.850: 65.0 more correct answers per 100 {OVER} 4",
             "next": "Deploy the learned",
             "cost": "per query 3 calls, 360 tokens, $0.003; before 1 call, 120 tokens, $0.001",
             "type": "pco prompt last --row learned"},
        ),
        (
            [right("present", 8), right("concat", 33), right("learned", 34, ROUTED)],
            "Do not deploy: the learned prompt",
            {"next": "Use the concat prompt instead: it takes no more calls, and the learned "
             "prompt is not clearly better. It gives 62.5 more correct answers",
             "type": "pco prompt last --row concat"},
        ),
        (
            [right("present", 20), right("learned", 23)],
            "Do not deploy: the learned prompt",
            {"gain": "0.500 → 0.575: 7.5 more", "type": "pco report last",
             "next": "Keep the present prompt. About 1,100 test inputs would"},
        ),
        (
            [right("present", 30), right("learned", 10)],
            "Do not deploy: the learned prompt",
            {"gain": f"0.750 → 0.250: 50.0 fewer correct answers per 100 {OVER} ",
             "next": "Keep the present prompt. Read the answers that are still wrong"},
        ),
        (
            four(0.1, 0.1, 0.1, 0.9, n=12),
            "Undecided: the learned prompt",
            {"gain": "0.094 → 0.900: 0.806 more points than the present prompt on a scale from 0",
             "next": "Add test inputs: a verdict needs at least 20."},
        ),
        (
            [replace(each, evaluation=replace(each.evaluation, rollouts=tuple(
                replace(r, usage=Usage()) for r in each.evaluation.rollouts)))
             for each in four(0.3, 0.4, 0.4, 0.7)],
            "Deploy: the learned prompt",
            {"cost": "per query not metered; before not metered"},
        ),
        ([], "Undecided: nothing was judged", {"next": "Keep at least 20 rows"}),
    ],
    ids=["deploy", "another row", "unclear gain", "worse", "too few", "no meter", "no test"],
)  # fmt: skip
def test_a_headline_says_to_everybody_what_to_do(
    entries: list[RowSource], title: str, message: dict[str, str]
) -> None:
    made = conclude(entries, JudgingTerms())
    head = made.headline("last")
    assert head.title == title
    for name, start in message.items():
        assert head.lines[name].startswith(start), head.lines
    assert title in made._repr_html_() or not entries


@pytest.mark.parametrize(("executor", "typed"), [
    ("http://h/v1#m", "pco serve shop"),
    ("smollm2",
     "pco lm serve smollm2 & pco serve shop --lm http://127.0.0.1:8000/v1#smollm2; kill $!"),
    ("simulated?load=0",
     "pco lm serve 'simulated?load=0' & pco serve shop "
     "--lm http://127.0.0.1:8000/v1#simulated; kill $!"),
])  # fmt: skip
def test_what_to_type_serves_a_model_of_this_process_first(executor: str, typed: str) -> None:
    made = conclude([right("present", 8), right("learned", 34, ROUTED)], JudgingTerms())
    rows = (made.rows[0], replace(made.rows[1], prompt=None))
    assert replace(made, rows=rows, executor=executor).headline("shop").lines["type"] == typed


def test_an_interval_on_both_sides_of_nothing_is_told_in_words() -> None:
    head = conclude([right("present", 20), right("learned", 21)], JudgingTerms()).headline()
    words = (
        r"0.500 → 0.525: 2.5 more correct answers .* between [\d.]+ fewer and [\d.]+ more "
        r"\(95 % interval, 40 test inputs\)\."
    )
    assert re.match(words, head.lines["gain"])
    down = conclude([right("present", 40), right("learned", 10)], JudgingTerms()).headline()
    assert re.search(r"between [\d.]+ and [\d.]+ fewer", down.lines["gain"])


# --- what a verdict evaluates, stores, and judges under ---
HEADER = Header("run", "2026-01-01T00:00:00+00:00", "0")
WORTH = {"you are present": 0.3, "you are concat": 0.4, "you are learned": 0.8}


def answer(request: Request) -> Scripted:
    """What the prompt is worth, with a sway from one input to the next; the rival has none."""
    text = sent(request)
    prompt, level = next(pair for pair in WORTH.items() if pair[0] in text)
    sway = 0.0 if prompt == "you are concat" else 0.01 * (int(text.split()[-1]) % 5 - 2)
    return str(round(level + sway, 3))


class Court:
    """A problem with nothing but a test split, and a result to be judged on it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.lm = ScriptedLM().reply_with(answer)
        self.phases: list[Phase] = []
        tree = {"init": {"prompt": "you are present"}, **settings}
        chosen = config(lm="own", cache=False, **tree)
        data = Dataset(tuple(examples(2)), (), tuple(examples(24, start=10)))
        task = Task("t", data, asks_nobody(self.reward), SingleCall())
        plan = Plan(chosen, task, load_templates("default"))
        models = Models.build(chosen, StackResources(client=self.lm))
        self.store = RunStore.create(folder, HEADER)
        self.problem = Problem(Assembled(plan, models), self.store, self.hear)

    def reward(self, example: Example, output: str) -> float:
        return float(output)

    def hear(self, event: object) -> None:
        if isinstance(event, Phase):
            self.phases.append(event)

    def result(self, remark: str = "") -> Result:
        rival = Result("concat", "the long prompt", FixedPrompt("you are concat"))
        mine = FixedPrompt("you are learned")
        return Result("learned", "the learned one", mine, rivals=(rival,), remark=remark)


@pytest.fixture
def court(tmp_path: Path) -> Iterator[Court]:
    made = Court(tmp_path)
    yield made
    made.store.close()


async def test_the_present_prompt_the_rivals_and_the_result_are_asked_on_all_of_the_test_split(
    court: Court,
) -> None:
    made, stop = await judge(court.problem, court.result())
    assert stop is None
    assert [row.name for row in made.rows] == ["present", "concat", "learned"]
    assert [row.title for row in made.rows][1:] == ["the long prompt", "the learned one"]
    for row, level in zip(made.rows, WORTH.values(), strict=True):
        assert row.score.n == 24 and row.score.mean == pytest.approx(level, abs=0.01)
    assert made.worth is True and made.deploy == "learned"
    assert len(court.lm.history) == 3 * 24
    begun = [phase.name for phase in court.phases if phase.done == 0]
    assert begun == ["judging present", "judging learned", "judging concat"], "as they are needed"


async def test_what_was_evaluated_is_stored_and_not_asked_again(court: Court) -> None:
    first, _ = await judge(court.problem, court.result())
    assert [e.name for e in court.store.test_evaluations()] == ["present", "learned", "concat"]
    assert await judge(court.problem, court.result()) == (first, None)
    assert len(court.lm.history) == 3 * 24
    told, _ = await judge(court.problem, court.result("Nothing was rewritten."))
    assert told == replace(first, sentence=f"{first.sentence} Nothing was rewritten.")


async def test_a_verdict_is_drawn_by_one_seed_for_all_within_the_range_of_the_rewards(
    tmp_path: Path,
) -> None:
    """Who compares two of its rows later finds the same interval, whatever the run's seed."""
    settings = {"seed": 3, "reward_range": (-1.0, 2.0)}
    court = Court(tmp_path, **settings)
    made, _ = await judge(court.problem, court.result())
    present, _, concat = court.store.test_evaluations()

    def scores(terms: JudgingTerms) -> list[Interval]:
        return [row_of(evaluation, None, terms).score for evaluation in (present, concat)]

    judged = [row.score for row in made.rows[:2]]
    assert judged == scores(JudgingTerms((-1.0, 2.0)))
    assert judged[1] != scores(JudgingTerms((0.0, 1.0)))[1], "equal rewards, in a narrower range"
    court.store.close()


async def test_a_run_that_was_made_longer_says_that_it_looks_again_and_corrects_for_it(
    court: Court,
) -> None:
    """The looks are counted from the store, so that another session knows of them."""
    store = court.store
    for look, level in ((1, "95 %"), (2, "98.75 %"), (3, "99.38 %")):
        made, _ = await judge(court.problem, court.result())
        assert ("same test split" in made.sentence) == (look > 1)
        assert f"({level} +0." in made.sentence
        store.append(Concluded(made.sentence, made.worth, made.table.as_json()))
        again, _ = await judge(court.problem, court.result())
        assert again == made, "the same look, not a further one"
        store.append(Amended(("epochs: 2 → 4",), "2026-02-01T00:00:00+00:00", extended=True))
    assert "This is look 3 at the same test split" in made.sentence
    path = store.path
    store.close()
    with closing(RunStore.open(path)) as reopened:
        assert reopened.outline().looks == reopened.state().looks == 3


def test_a_run_that_goes_on_after_its_verdict_looks_again_however_it_is_read(court: Court) -> None:
    """A budget stopped it after a verdict, twice, and it took more steps: one read leaves all steps
    out but the last one."""
    row = Evaluation("learned", "test", (Rollout("a", reward=1.0),))
    for step in range(9):
        empty = Parameters(str(step), "", Codebook(()), "")
        court.store.append(Stepped(Step(step, step, 0.5, (), (), empty, (), (), ())))
        if step in (2, 5):
            court.store.append(Compared(row))
            court.store.append(Concluded("No.", False))
            court.store.append(Concluded("No.", False))  # resumed, and nothing to do
    assert court.store.outline().looks == fold(court.store.events()).looks == 2


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("3x", ""),
        ("2.5x", "takes 3 times the cost of the present prompt, but verdict.max_cost allows 2.5x"),
        ("300tok", "a query with the learned prompt takes 360 tokens"),
        ("2calls", "takes 3.0 calls"),
        ("0.002usd", "takes $0.003"),
    ],
)
def test_what_costs_more_than_is_allowed_is_not_worth_deploying(limit: str, words: str) -> None:
    made = conclude(four(0.4, 0.41, 0.4, 0.9), JudgingTerms(max_cost=limit))
    assert made.worth is not bool(words) and words in made.sentence
    assert made.deploy == ("present" if words else "learned")
    cheaper = conclude(four(0.4, 0.8, 0.4, 0.9), JudgingTerms(max_cost=limit))
    assert cheaper.deploy == ("concat" if words else "learned")


def test_a_price_is_set_beside_the_gain_and_what_is_not_metered_keeps_within_no_limit() -> None:
    entries = four(0.4, 0.4, 0.4, 0.9)
    cost = conclude(entries, JudgingTerms()).headline().lines["cost"]
    assert cost.endswith("before 1 call, 120 tokens, $0.001: 3 times the cost, $0.004 for each "
                         "further point")  # fmt: skip
    mine = entries[-1].evaluation
    dark = replace(mine, rollouts=tuple(replace(r, metered=False) for r in mine.rollouts))
    entries[-1] = replace(entries[-1], evaluation=dark)
    made = conclude(entries, JudgingTerms(max_cost="9x"))
    assert made.worth is False and "prompt is unknown, but verdict.max_cost" in made.sentence
    assert "times" not in made.headline().lines["cost"]


def test_a_clear_gain_is_undecided_where_the_budget_did_not_reach_a_rival() -> None:
    present, concat, _, learned = four(0.4, 0.4, 0.4, 0.9)
    made = conclude([present, concat, learned], JudgingTerms(missing=("the untrained codebook",)))
    assert made.worth is None and made.deploy == ""
    assert made.sentence.startswith("Undecided: the learned prompt shows +0.502")
    assert "The untrained codebook takes no more calls, but the budget ran out" in made.sentence
    head = made.headline("RUN")
    assert head.decision == "Undecided"
    assert "so that the untrained codebook can be judged" in head.lines["next"]
    assert head.lines["type"] == "pco train --resume RUN --budget MORE"
    none = conclude([learned, concat, present], JudgingTerms(missing=("the untrained codebook",)))
    assert none.worth is False, "what shows no gain needs no rival"


@pytest.mark.parametrize("size", [30, 100, 300])
def test_the_gain_that_a_test_split_can_show_is_shown_in_four_of_five_cases(size: int) -> None:
    points = int(verdict_power(size).partition("gain of ")[2].partition(" ")[0])
    gain, draw, shown = points / 100, random.Random(size), list[bool]()
    differ = max(0.2, gain)
    for _ in range(400):
        drawn = (draw.random() for _ in range(size))
        values = [1.0 if u < (differ + gain) / 2 else -1.0 if u < differ else 0.0 for u in drawn]
        shown.append(mean_interval(values, (-1.0, 1.0)).low > 0)
    assert 0.74 < fmean(shown) < 0.92 and not verdict_power(5)


def test_a_cheaper_form_of_what_is_worth_deploying_is_named_with_what_it_earns() -> None:
    entries = four(0.4, 0.4, 0.4, 0.9)
    learned = entries[-1].evaluation
    for less, told in ((0.0, "no clear difference: the"), (0.1, "a difference: the")):
        rollouts = [replace(r, reward=(r.reward or 0.0) - less) for r in learned.rollouts]
        plain = replace(learned, name="verbatim", rollouts=tuple(rollouts))
        source = RowSource("the learned prompt without its generator", plain, reference=True)
        made = conclude([entries[0], source, *entries[1:]], JudgingTerms())
        said = made.headline().lines["next"]
        assert made.worth and "serve.verbatim = true" in said and told in said
        assert f"earns {0.9 - less:.1f}" in said
