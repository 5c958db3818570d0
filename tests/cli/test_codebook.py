import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import promptcodebook as pco_api
from promptcodebook import types
from promptcodebook.deploy.viewer.following import FollowedRun
from promptcodebook.deploy.viewer.screens import run_screen
from promptcodebook.errors import PolicyError
from promptcodebook.policy.file import read_policy_file
from promptcodebook.store.effects import read_effects
from promptcodebook.store.events import Started, Stepped
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from tests.build.cli import pco
from tests.build.strict import flat
from tests.build.topics import learn


def test_show_has_every_instinct_with_its_figures(trained: Path, run_id: str) -> None:
    path = f"runs/{run_id}/policy.json"
    shown = pco("registry", "show", "last", "--json", cwd=trained).json
    of_file = pco("registry", "show", path, "--json", cwd=trained).json
    file = json.loads((trained / path).read_text())
    assert [e["text"] for e in shown["codebook"]] == [e["text"] for e in file["codebook"]]
    assert [e["index"] for e in shown["codebook"]] == list(range(16))
    text = " ".join(pco("registry", "show", "last", cwd=trained).out.split())
    assert not set("r̄εθφψ") - set("r") & set(text)
    for other in ("success", "ema", "adds", "earned"):
        assert other not in shown["codebook"][0] and f"{other} " not in text.split("encoder:")[0]
    for entry in shown["codebook"]:
        assert entry["text"] in text
    assert shown.pop("ref") == run_id and of_file.pop("ref") == "policy.json"
    assert shown == of_file


def test_log_has_every_rewrite_with_its_fate(trained: Path, store: RunStore) -> None:
    rewrites = [(s.index, r) for s in store.steps() for r in s.rewrites]
    log = pco("registry", "log", "last", "--json", cwd=trained).json
    assert [(e["update"] - 1, e["variable"], e["kept"]) for e in log] == [
        (step, types.variable_name(r.variable), r.kept) for step, r in rewrites
    ]
    assert pco("registry", "log", "last", cwd=trained).out.count("\n  feedback  ") == len(rewrites)


def test_log_shows_both_tries_of_a_rewrite_that_was_refused_at_first(tmp_path: Path) -> None:
    parameters = types.Parameters("theta", "phi", types.Codebook((types.Instinct("old"),)), "psi")
    rewrite = types.Rewrite(
        0, "old", "new", "- g", kept=True, earlier=types.RefusedReply("too long", "9 words")
    )
    back = types.Rewrite("encoder", "new", "old", "", True, "4 of 5 fell back", origin="trial")
    step = types.Step(0, 0, 1.0, (), (rewrite, back), parameters, (0.0,), (0.0,), (0,))
    header = Header(id="", created="2026-01-31T15:45:02+00:00", version="0", task="t", command="",
                    config={}, fingerprints={})  # fmt: skip
    store = RunStore.create(tmp_path / "runs", header)
    store.append(Started(parameters, "expert"))
    store.append(Stepped(step))
    store.close()
    assert pco("registry", "log", "last", cwd=tmp_path).out == (
        "update 1  c0  kept\n  before    old\n  at first  too long\n  refused   9 words\n"
        "  after     new\n  feedback  - g\n\n"
        "update 1  encoder  trial, kept: 4 of 5 fell back\n  before    new\n  after     old\n"
        "  feedback\n"
    )
    shown, _ = pco("registry", "log", "last", "--json", cwd=tmp_path).json
    assert shown["earlier"] == {"text": "too long", "reason": "9 words"}


def test_show_marks_a_rewritten_text_by_whom_and_from_what(tmp_path: Path) -> None:
    book = types.Codebook((types.Instinct("seed"), types.Instinct("as it was")))
    first = types.Parameters("theta", "phi", book, "psi")
    last = replace(first, encoder="new theta", codebook=book.reword(0, "mended"))
    rewrites = (
        types.Rewrite(0, "seed", "mended", "- g", kept=True),
        types.Rewrite(1, "as it was", "refused", "- g", kept=False, reason="too long"),
        types.Rewrite("encoder", "theta", "new theta", "- g", kept=True),
    )
    zeros = (0.0, 0.0)
    step = types.Step(0, 0, 1.0, (), rewrites, last, zeros, zeros, (0, 0))
    config = {"lm": "http://a/v1#m", "roles": {"updater": {"model": "http://b/v1#big"}}}
    config |= {"size": 2, "select": 1}
    header = Header(id="", created="2026-01-31T15:45:02+00:00", version="0", task="t", command="",
                    config=config, fingerprints={})  # fmt: skip
    store = RunStore.create(tmp_path / "runs", header)
    store.append(Started(first, "expert"))
    store.append(Stepped(step))
    store.close()
    result = pco("registry", "show", "last", cwd=tmp_path)
    assert result.code == 0, result.err
    out = result.out
    mark = "rewritten once, last by the updater (http://b/v1#big); originally: "
    assert "[0] mended\n" in out and f"{mark}seed" in out and f"{mark}theta" in out
    assert out.count("rewritten") == 2
    shown = pco("registry", "show", "last", "--json", cwd=tmp_path).json
    assert shown["codebook"][0]["rewritten"]["first"] == "seed"
    assert shown["codebook"][1]["rewritten"] is None


def test_diff_of_a_run_from_its_first_codebook_and_of_two(
    trained: Path, run_id: str, store: RunStore
) -> None:
    other = json.loads((trained / "runs" / run_id / "policy.json").read_text())
    other["codebook"][2]["text"] = "Answer in Latin. \x1b[31m alert \x07"
    other["encoder"] = "theta \x1b]0;title\x07"
    (trained / "other.json").write_text(json.dumps(other))
    result = pco("registry", "diff", run_id, "other.json", cwd=trained)
    assert "c2" in result.out and "+}" in result.out and "-]" in result.out
    first = store.parameters_at(-1).codebook.texts
    kept = pco("registry", "show", "last", "--json", cwd=trained).json["codebook"]
    changes = pco("registry", "diff", "last", "--json", cwd=trained).json
    for k, before in enumerate(first):
        assert (f"c{k}" in changes) == (before != kept[k]["text"])
    changes = pco("registry", "diff", run_id, "other.json", "--json", cwd=trained).json
    assert list(changes) == ["encoder", "c2"]
    assert changes["c2"]["after"] == other["codebook"][2]["text"]
    assert "no difference" in pco("registry", "diff", run_id, run_id, cwd=trained).out
    # What a model wrote does not steer the terminal.
    for out in (result.out, pco("registry", "show", "other.json", cwd=trained).out):
        assert "alert" in out and "\x1b" not in out and "\x07" not in out


def test_effect_says_what_it_may_take_and_keeps_what_it_finds(trained: Path, run_id: str) -> None:
    first = pco("registry", "effect", "last", "0", "--split", "train", cwd=trained)
    assert first.code == 0, first.err
    assert "instinct 0 on 12 inputs: at most 36 calls, 12 of them for the routes" in first.err
    assert "simulated model, train split" in first.out and "95 %" in first.out
    again = pco("registry", "effect", run_id, "0", "--split", "train", "--json", cwd=trained)
    assert again.json["calls_paid"] == 0 and again.json["simulated"] is True
    [kept] = read_effects(trained / "runs" / run_id)
    assert kept.n == again.json["n"] and kept.difference is not None
    assert again.json["difference"]["mean"] == kept.difference.mean
    assert f"{kept.difference.mean:+.3f}" in first.out


# A router that learned from outcomes, and one that was distilled.

NO_MODEL = ("--lm", "http://localhost:9/v1#nobody")
QUERY = "hi, where is my parcel"


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> pco_api.Run:
    return learn(tmp_path_factory.mktemp("shown") / "runs", config={"update": {"epochs": 6}})


@pytest.fixture(scope="module")
def routed(learnt: pco_api.Run) -> Path:
    return Path(learnt.path).parents[1]


def test_explain_says_what_each_instinct_promises(routed: Path) -> None:
    result = pco("explain", "last", QUERY, *NO_MODEL, cwd=routed)
    assert result.code == 0, result.err
    assert "router's score with one instinct alone (for ranking, not a reward)" in result.out
    promised = re.findall(r"^  (\d\.\d+)  (.+)$", result.out, re.M)
    values = [float(value) for value, _ in promised]
    assert values == sorted(values, reverse=True)
    assert promised[0][1] == "[3] If it is about a parcel, say P.  (chosen)"
    assert [text for _, text in promised if text.startswith("no instinct")]
    tree = pco("explain", "last", QUERY, *NO_MODEL, "--json", cwd=routed).json
    scores, [chosen] = tree["scores"], tree["route"]["indices"]
    alone = scores["alone"][chosen]
    assert alone == max(scores["alone"]) == scores["route"]
    assert alone == pytest.approx(scores["nothing"] + scores["marginal"][chosen])


def test_an_input_of_words_that_the_router_never_saw_is_told_so(
    routed: Path, learnt: pco_api.Run
) -> None:
    """It gets the same route whatever its words are: the best by what no word changes."""
    foreign = ("Wo ist mein Paket?", "Kann ich das noch umtauschen?")
    made = [pco("explain", "last", text, *NO_MODEL, "--json", cwd=routed).json for text in foreign]
    ranking = learnt.policy.file.statistics.ranking
    assert ranking is not None
    for tree in made:
        assert (
            "words are new to the router" in tree["route"]["fault"]
            and not tree["route"]["fallback"]
        )
        assert tuple(tree["scores"]["marginal"]) == ranking.bias[1:]
    assert made[0]["route"]["indices"] == made[1]["route"]["indices"]
    assert (
        "words are new to the router"
        in pco("explain", "last", foreign[0], *NO_MODEL, cwd=routed).out
    )
    assert "never saw" not in pco("explain", "last", QUERY, *NO_MODEL, cwd=routed).out


@pytest.mark.parametrize(("text", "unlike"), [
    ("Wo finde ich eigentlich mein verschwundenes Paket?", True),
    ("zxqv 999 wvut", True),
    ("How many mugs are left when a shop starts with 90 and sells 12?", False),
    ("Classify this message with one label, billing or account: I paid twice.", False),
])  # fmt: skip
def test_an_encoder_s_input_that_is_unlike_all_training_inputs_is_marked(
    trained: Path, run_id: str, text: str, unlike: bool
) -> None:
    remark = "input  (unlike any training input: nothing was learned about its words)"
    result = pco("explain", run_id, text, cwd=trained)
    assert result.code == 0 and result.out.startswith(remark) is unlike, result.out
    assert pco("explain", run_id, text, "--json", cwd=trained).json["unlike"] is unlike
    file = f"runs/{run_id}/policy.json"
    shutil.copy(trained / file, trained / "alone.json")  # no data are known of it
    alone = pco("explain", "alone.json", text, "--lm", "simulated", cwd=trained)
    assert alone.out.startswith("input\n"), alone.err


@pytest.mark.slow
def test_one_figure_of_an_instinct_is_shown_everywhere(routed: Path, learnt: pco_api.Run) -> None:
    """Its test inputs' mean reward; each gets it alone, so the row without any is the other."""
    tests = {name: learnt.rollouts.query(f"row == '{name}'") for name in ("learned", "none")}
    learned = tests["learned"].set_index("example")
    own = [name for name, route in learned["route"].items() if route == (3,)]
    with_it = learned.loc[own]["reward"].mean()
    without = tests["none"].set_index("example").loc[own]["reward"].mean()
    figure = f"{with_it:.3f} with it, {without:.3f} without: {with_it - without:+.3f} (95 % "
    shown = pco("registry", "show", "last", cwd=routed)
    assert "learned from 192 outcomes; calls no model" in shown.out
    explained = pco("explain", "last", QUERY, *NO_MODEL, cwd=routed)
    report = pco("report", "last", "-o", "r.html", cwd=routed)
    assert report.code == 0
    cells = flat((routed / "r.html").read_text("utf-8"))
    assert figure in cells
    followed = FollowedRun(Path(learnt.path), "run")
    card = flat(run_screen(followed).body.partition('id="test"')[0])
    followed.close()
    for text in (shown.out, explained.out, card):
        assert figure in " ".join(text.split()), text
    text = " ".join(shown.out.split())
    assert re.search(r"n = \d+, test; selected", text) and "no test input is routed to it" in text
    for page in (shown.out, explained.out, card):
        assert not re.search(r"\b(adds|earned|success)\b", page)


def test_the_best_single_instinct_can_be_had(
    routed: Path, learnt: pco_api.Run, tmp_path: Path
) -> None:
    """From the run, from its policy file, and from a saved one: the text that was measured."""
    text = learnt.rows["best_single"].prompt
    assert text and learnt.policy.row("best_single").text == text
    for ref in ("last", str(Path(learnt.path) / "policy.json")):
        assert pco("prompt", ref, "--row", "best_single", cwd=routed).out == f"{text}\n"
    learnt.policy.save(tmp_path / "p.json")
    assert pco("prompt", "p.json", "--row", "best_single", cwd=tmp_path).out == f"{text}\n"
    nothing = pco("prompt", "last", "--row", "none", "--json", cwd=routed)
    assert nothing.json == {"ref": learnt.id, "row": "none", "prompt": ""}


def test_a_policy_without_one_says_so(trained: Path, run_id: str) -> None:
    result = pco("prompt", run_id, "--row", "best_single", cwd=trained)
    result.error(2, "does not record the prompt of the row 'best_single'")
    with pytest.raises(PolicyError, match="each input gets its own"):
        pco_api.load_policy(trained / "runs" / run_id / "policy.json", lm="simulated").row(
            "learned"
        )


def test_other_rows_are_evaluated_by_name(trained: Path, run_id: str) -> None:
    none = pco("eval", run_id, "--n", "6", "--row", "none", "--json", cwd=trained)
    assert none.code == 0, none.err
    assert none.json["row"] == "none" and {e["route"] for e in none.json["examples"]} == {None}
    learned = pco("eval", run_id, "--n", "6", "--json", cwd=trained).json
    assert learned["row"] == "learned" and all(e["route"] for e in learned["examples"])
    result = pco("eval", run_id, "--n", "6", "--row", "concat", cwd=trained)
    assert re.search(r"^row +concat$", result.out, re.M)
    pco("eval", run_id, "--row", "oracle", cwd=trained).error(2, "does not know the right")
    pco("eval", run_id, "--row", "orakel", cwd=trained).error(2, "oracle")


def test_distill_tells_what_it_asks_and_what_it_found(trained: Path, run_id: str) -> None:
    """On the simulated model: fresh routes, the difference, and a policy to use."""
    result = pco("distill", run_id, "--fresh", "4", "--n", "6", cwd=trained)
    assert result.code == 0, result.err
    assert re.search(r"asking for [1-4] more and answering 6 validation examples", result.err)
    assert re.search(r"asking the encoder for [1-4] routes", result.err)
    assert "reward, distilled - encoder: " in result.out
    assert "Keep the encoder as the default" in " ".join(result.out.split())
    file = trained / "runs" / run_id / "distilled.json"
    assert f"wrote {file.relative_to(trained)}" in result.out
    shown = pco("registry", "show", str(file), "--json", cwd=trained).json
    assert shown["router"]["kind"] == "distilled" and shown["router"]["least"] == shown["select"]
    evaluated = pco("eval", str(file), "--n", "6", "--json", cwd=trained)
    assert evaluated.code == 0, evaluated.err
    assert {len(e["route"]) for e in evaluated.json["examples"]} == {shown["select"]}


def test_distill_as_json(trained: Path, run_id: str) -> None:
    made = pco("distill", run_id, "--fresh", "4", "--n", "4", "-o", "d.json", "--json", cwd=trained)
    tree = made.json
    assert tree["policy"] == "d.json" and 1 <= tree["fresh"] <= 4
    assert tree["non_inferior"] is False
    file = read_policy_file(trained / "d.json")
    assert file.about["distilled"] == {k: v for k, v in tree.items() if k not in ("ref", "policy")}
    again = pco("distill", str(trained / "d.json"), "--fresh", "8", "-o", "e.json", cwd=trained)
    again.error(2, "uses no encoder")
    short = pco("distill", run_id, "--fresh", "8", "--budget", "9calls", cwd=trained)
    short.error(2, "calls, and the budget has 9", "--budget")
    assert not (trained / "runs" / run_id / "distilled.json").exists()
