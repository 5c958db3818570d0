"""`pco judge`: how far a judge agrees with people, and a verdict that allows for its error."""

import csv
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from promptcodebook.base.intervals import paired_interval
from promptcodebook.base.randomness import keyed_random
from promptcodebook.paper.tasks.houserules.task import load_houserules, present_prompt, reward
from promptcodebook.tools.judging.figures import cohen_kappa, rectified
from tests.build.cases import table
from tests.build.cli import Result, pco, served
from tests.build.server import Server, fails, says

RUBRIC = "The number is right."
Judges = Callable[[Mapping[str, str]], Any]


@pytest.mark.parametrize(("pair", "kappa"), table(__file__, "kappas"))
def test_kappa_is_what_scikit_learn_computes(pair: list[str], kappa: float) -> None:
    """`cohen_kappa_score(a, b, weights="quadratic")` of version 1.9.1, which for two levels is the
    one without weights."""
    rated = [([int(a)], int(b)) for a, b in zip(*pair, strict=True)]
    found = cohen_kappa(rated, 1 + max(map(int, "".join(pair))))
    assert found is not None and found.mean == pytest.approx(kappa, abs=1e-12)
    assert found.low < kappa < found.high


def test_kappa_of_several_raters_counts_each_answer_once() -> None:
    alone = cohen_kappa([([1], 1), ([0], 0), ([1], 0), ([0], 1)] * 10, 2)
    twice = cohen_kappa([([1, 1], 1), ([0, 0], 0), ([1, 1], 0), ([0, 0], 1)] * 10, 2)
    assert alone == twice
    assert cohen_kappa([([1], 1)] * 30, 2) is None


def test_the_interval_of_an_ordered_kappa_allows_for_the_widest_error() -> None:
    """One answer of 41 is off by one level of three, a quarter of what two levels would be."""
    found = cohen_kappa([*[([0], 0), ([2], 2)] * 20, ([1], 2)], 3)
    assert found is not None and found.mean == pytest.approx(1 - 0.25 / 41 / CHANCE)
    most = 0.128  # the share of errors of which one in 41 or fewer is seen in 2.5 % of samples
    assert found.low == pytest.approx(1 - most / CHANCE, abs=0.01)


CHANCE = (20 * 21 + 20 * 20 + 0.25 * (20 + 21)) / 41**2


def misses(specificity: float) -> Counter[str]:
    """How often an interval misses the truth, that nothing is gained, in 100 worlds.

    Both policies answer 200 inputs; people labelled the answers to 60 of them. The judge calls a
    right answer right in nine of ten cases. It calls a wrong one wrong in seven, except where it
    likes the learned policy: then as often as told.
    """
    missed = Counter[str]()
    for number in range(100):
        draw = keyed_random("judge", specificity, number)
        chances = [draw.random() for _ in range(200)]
        learned, present = ([draw.random() < p for p in chances] for _ in range(2))

        def judged(right: list[bool], of_wrong: float, draw: Random = draw) -> list[float]:
            return [float(draw.random() < (0.9 if each else 1 - of_wrong)) for each in right]

        mine, theirs = judged(learned, specificity), judged(present, 0.7)
        labels = [float(a) - float(b) for a, b in zip(learned, present, strict=True)][:60]
        apart = [a - b for a, b in zip(mine, theirs, strict=True)]
        known = list(zip(labels, apart, strict=False))
        alone, both = paired_interval(mine, theirs), rectified(known, apart[60:], (-1, 1))
        missed["alone"] += not alone.low <= 0 <= alone.high
        missed["both"] += not both.low <= 0 <= both.high
    return missed


def test_labels_mend_what_a_judge_alone_gets_wrong() -> None:
    """An interval may miss in 5 % of worlds, and in at most 12 of 100 (the chance of more is 1 in
    600). The judge alone misses in nine of ten where it likes the learned policy."""
    even, likes_it = misses(0.7), misses(0.4)
    assert likes_it["both"] <= 12 and even["both"] <= 12
    assert likes_it["alone"] >= 75 and even["alone"] <= 12


def test_a_judge_that_says_nothing_leaves_the_labels_alone() -> None:
    labels = [1.0, 0.0] * 15
    assert rectified([(label, 0.5) for label in labels], [0.5] * 100, (0, 1)).mean == 0.5
    pairs = [(float(i // 4 % 2), 0.5) for i in range(120)]
    copied = [str(i // 4) for i in range(len(pairs))], [str(i // 4) for i in range(100)]
    alone, alike = (rectified(pairs, [0.5] * 100, (0, 1), groups=g) for g in (((), ()), copied))
    assert alike.n < alone.n and alike.high - alike.low > alone.high - alone.low
    right = rectified([(label, label) for label in labels], [1.0, 0.0] * 200, (0, 1))
    silent = rectified([(label, 0.5) for label in labels], [0.5] * 400, (0, 1))
    assert right.high - right.low < 0.5 * (silent.high - silent.low)


# The commands


@pytest.fixture
def judging() -> Iterator[Callable[[Judges], Server]]:
    """A server whose judge is a function of the JSON that it is shown."""
    server = Server()

    def by(judges: Judges) -> Server:
        async def step(request: Any, body: dict[str, Any]) -> Any:
            last = body["messages"][-1]["content"]
            reply = judges(json.loads(last) if last.startswith("{") else {"text": last, **body})
            if reply is None:
                return await fails(413, "too large")(request, body)
            text = reply if isinstance(reply, str) else json.dumps({"feedback": "so", **reply})
            return await says(text)(request, body)

        server.default = step
        return server

    with served(server):
        yield by


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def answers(count: int = 40) -> list[dict[str, object]]:
    """Sums, every other one right, longer answers among both."""
    return [
        {
            "input": f"What is {n} + 1?",
            "target": n + 1,
            "answer": f"{n + 1 + n % 2}" + " I think so" * (n % 4 // 2),
            "label": "no" if n % 2 else "yes",
        }
        for n in range(count)
    ]


def calibrated(server: Server, folder: Path, *more: str) -> Result:
    asked = ("labels.csv", "--rubric", RUBRIC, "--lm", server.spec, "--json", *more)
    return pco("judge", "calibrate", *asked, cwd=folder)


def right(shown: Mapping[str, str]) -> bool:
    return shown["answer"].split()[0] == shown["reference"]


@pytest.mark.parametrize(("score", "decision", "why"), [
    (lambda s: 0.9 if right(s) else 0.2, "use it", "it agrees with people"),
    (lambda s: 0.5, "do not trust it", "may be due to chance"),
    (lambda s: len(s["answer"]) % 2 / 2, "do not trust it", "may be due to chance"),
    (
        lambda s: float(right(s) or (len(s["answer"]) > 8 and hash_of(s) % 2)),
        "use it, with intervals that include its error",
        "κ is below 0.8, or the lower end of its interval below 0.6",
    ),
])  # fmt: skip
def test_a_judge_is_trusted_as_far_as_it_agrees_with_people(
    score: Callable[[Mapping[str, str]], float],
    decision: str,
    why: str,
    judging: Callable[[Judges], Server],
    tmp_path: Path,
) -> None:
    write(tmp_path / "labels.csv", answers(60))
    found = calibrated(judging(lambda shown: {"score": score(shown)}), tmp_path).json
    assert found["decision"] == decision and why in found["why"], found
    assert json.loads((tmp_path / "labels.judge.json").read_text("utf-8")) == found


@pytest.mark.parametrize(("count", "enough"), [(19, False), (20, True)])
def test_twenty_labels_are_enough_to_tell(
    count: int, enough: bool, judging: Callable[[Judges], Server], tmp_path: Path
) -> None:
    write(tmp_path / "labels.csv", answers(count))
    found = calibrated(judging(lambda shown: {"score": float(right(shown))}), tmp_path).json
    assert ("a decision needs 20 judged answers" not in found["why"]) == enough


def hash_of(shown: Mapping[str, str]) -> int:
    return int(shown["reference"]) // 4


def test_what_a_judge_cannot_judge_is_counted_and_nothing_is_paid_for_twice(
    judging: Callable[[Judges], Server], tmp_path: Path
) -> None:
    rows = [*answers(30), {**answers()[0], "input": "What is 1000 + 1?", "label": ""}]
    write(tmp_path / "labels.csv", rows)
    server = judging(
        lambda s: None if s["reference"] in ("4", "9") else {"score": 0.7 if right(s) else 0.1}
    )
    stopped = calibrated(server, tmp_path, "--budget", "21calls")
    stopped.error(3, "budget", "everything paid for so far is kept")
    assert len(server.bodies) == 21
    found = calibrated(server, tmp_path).json
    counts = found["judged"], len(found["failures"]), found["blank"]
    assert counts == (28, 2, 1) and "RequestRefused" in found["failures"][0]
    assert found["decision"] == "use it, with intervals that include its error"
    assert found["why"] == "7% of the answers could not be judged"
    asked = Counter(json.dumps(body["messages"]) for body in server.bodies)
    assert len(asked) == 30 and asked.total() <= 32, "only what was refused is asked again"


def test_raters_and_scales(judging: Callable[[Judges], Server], tmp_path: Path) -> None:
    rows = [{**row, "label": 5 if row["label"] == "yes" else 2} for row in answers()]
    other = [{**row, "rater": "b", "label": 4 if row["label"] == 5 else 2} for row in rows]
    write(tmp_path / "labels.csv", [{**r, "rater": "a"} for r in rows] + other)
    server = judging(lambda s: {"score": 1.0 if right(s) else 0.25})
    calibrated(server, tmp_path).error(2, "labels.csv:2", "--scale 1 5")
    found = calibrated(server, tmp_path, "--scale", "1", "5").json
    assert found["judged"] == 40 and found["agreement"]["mean"] == 0.75
    assert 0.8 < found["kappa"]["mean"] < 1


def test_labels_that_cannot_be_read_are_named(
    judging: Callable[[Judges], Server], tmp_path: Path
) -> None:
    server = judging(lambda s: None)
    write(tmp_path / "labels.csv", [{"input": "x", "answer": "y"}])
    calibrated(server, tmp_path).error(2, "no column 'label'", "target and id")
    write(tmp_path / "labels.csv", answers(3))
    calibrated(server, tmp_path).error(2, "no labelled answer could be judged: RequestRefused")


def flattered(shown: Mapping[str, Any]) -> Any:
    """A program that is right on even numbers, whatever its prompt, and says the words that its
    prompt asks for; and a judge that likes one word alone: please, or now on quick questions."""
    if "answer" in shown:
        words = shown["answer"].split()[1:]
        return {"score": float(words == [["please"], ["now"]]["quick" in shown["input"]])}
    asked, number = shown["messages"][0]["content"], int(shown["text"].split()[2])
    orders = [word for word in ("please", "now") if f"Say {word}" in asked]
    return " ".join([f"={number + 1 + number % 2}", *orders])  # a formula to a spreadsheet


@pytest.fixture
def run(
    judging: Callable[[Judges], Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder of a run whose judge prefers what was learned, though no answer is better."""
    monkeypatch.setenv("PCO_RUNS", str(tmp_path / "runs"))
    rows = [
        {"question": f"What is {n} + 1, {'quick' if n // 2 % 2 else 'kind'}?", "answer": str(n + 1)}
        for n in range(120)
    ]
    tmp_path.joinpath("data.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    shutil.copy(LABELS.with_name("pco.toml"), tmp_path)
    spec = judging(flattered).spec
    tmp_path.joinpath("spec").write_text(spec, "utf-8")
    made = pco("train", "--lm", spec, "--json", cwd=tmp_path)
    assert made.code == 0, made.err
    verdict = made.json
    assert verdict["verdict"].startswith("Worth deploying: "), verdict["verdict"]
    assert "intervals ignore its error. To include it: `pco judge sheet`." in verdict["verdict"]
    return tmp_path


def label(folder: Path, keep: Callable[[str], bool] = lambda answer: True) -> None:
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        is_right = row["answer"].split()[0] == f"'={row['target']}"
        row["label"] = ("yes" if is_right else "no") if keep(row["answer"]) else ""
    write(folder / "labels.csv", rows)


def test_labels_take_back_a_gain_that_only_the_judge_sees(run: Path) -> None:
    assert pco("judge", "sheet", "last", "--n", "40", cwd=run).code == 0
    label(run, lambda answer: not answer.endswith("please now"))  # none of the present prompt's
    found = pco("judge", "verdict", "last", "labels.csv", cwd=run)
    found.error(2, "does not show the judge", "pco judge sheet RUN")
    label(run, lambda answer: answer[-1] not in "0123456789")  # none without any instruction
    found = pco("judge", "verdict", "last", "labels.csv", "--json", cwd=run).json
    assert ", except for 'none', where the error is unknown." in found["sentence"]

    listed = pco("judge", "sheet", "last", "--n", "30", cwd=run)
    assert listed.code == 0 and "pco judge verdict last labels.csv" in listed.out
    text = (run / "labels.csv").read_text("utf-8")
    assert "learned" not in text and "concat" not in text, "who labels must not know the row"
    pco("judge", "verdict", "last", "labels.csv", cwd=run).error(
        2, "it needs labels", "judge sheet"
    )
    label(run)
    found = pco("judge", "verdict", "last", "labels.csv", "--json", cwd=run).json
    assert (
        found["worth"] is False
        and "using people's labels on 30 of 72 test inputs" in (found["sentence"])
    )
    assert "To include it: `pco judge sheet`" not in found["sentence"]
    gain = next(row["gain"] for row in found["rows"] if row["name"] == "learned")
    assert gain["low"] < 0 < gain["high"] and gain["mean"] == 0.0
    assert found["sentence"] in pco("runs", "show", "last", "--json", cwd=run).out
    again = pco("judge", "verdict", "last", "labels.csv", "--json", cwd=run).json
    assert again == found, "the same labels give the same verdict, and are no further look"

    [whole], bare = (run / "runs").iterdir(), run / "runs" / "29990101-000000-bare"
    shutil.copytree(whole, bare)
    with closing(sqlite3.connect(bare / "run.sqlite")) as db, db:
        db.execute("DELETE FROM events WHERE kind = 'concluded'")
    pco("judge", "verdict", bare.name, "labels.csv", cwd=run).error(1, "has no verdict")


@pytest.mark.slow
def test_a_run_that_is_resumed_keeps_its_verdict_by_labels(run: Path) -> None:
    """Where no row is judged again. The run ended by its budget, with what was kept for that."""
    spent = ("--set", "update.epochs=50", "--budget", "1500calls", "--seed", "1")
    spent += ("--set", "budget.reserve_for_verdict=0.8")
    made = pco("train", "--lm", (run / "spec").read_text("utf-8"), *spent, "--json", cwd=run)
    assert made.code == 3 and made.json["rows"]
    assert pco("judge", "sheet", "last", "--n", "30", cwd=run).code == 0
    label(run)
    found = pco("judge", "verdict", "last", "labels.csv", "--json", cwd=run).json
    assert "using people's labels" in found["sentence"]
    again = pco("train", "--resume", "last", "--budget", "1500calls", "--json", cwd=run)
    assert again.json["verdict"] == found["sentence"] and again.json["rows"] == found["rows"]


# A judge of 40 answers to messages of `houserules`, written by hand: half keep the rule of their
# topic, half are such answers to another topic. Fixed before it was asked: SmolLM2 is not to be
# trusted.

LABELS = Path(__file__).with_name("houserules_answers.csv")
HOUSE_RUBRIC = f"The answer keeps the house rule of the message's topic.\n\n{present_prompt()}"


def test_the_labels_are_the_checker_s() -> None:
    by_input = {example.input: example for example in load_houserules().dataset.train}
    with LABELS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores = [reward(by_input[row["input"]], row["answer"]).value for row in rows]
    assert [row["label"] for row in rows] == ["yes" if value else "no" for value in scores]
    assert len(rows) == 40 and sum(scores) == 20


@pytest.mark.local
def test_smollm2_is_no_judge(tmp_path: Path) -> None:
    shutil.copy(LABELS, tmp_path / "labels.csv")
    asked = ("labels.csv", "--rubric", HOUSE_RUBRIC, "--lm", "smollm2", "--json")
    found = pco("judge", "calibrate", *asked, cwd=tmp_path)
    assert found.code == 0, found.err
    assert found.json["decision"] == "do not trust it", found.json
