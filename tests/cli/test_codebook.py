from __future__ import annotations

import json
from pathlib import Path

from promptcodebook.cli.codebook import mark_changes
from promptcodebook.store.effects import read_effects
from promptcodebook.store.events import Started, Stepped
from promptcodebook.store.header import Header
from promptcodebook.store.run import RunStore
from promptcodebook.types import (
    Codebook,
    Instinct,
    Parameters,
    Refused,
    Rewrite,
    Step,
    variable_name,
)
from tests.cli.invoked import pco


def test_show_has_every_instinct_with_its_figures(trained: Path, run_id: str) -> None:
    path = f"runs/{run_id}/policy.json"
    shown = pco("codebook", "show", "last", "--json", cwd=trained).json
    of_file = pco("codebook", "show", path, "--json", cwd=trained).json
    file = json.loads((trained / path).read_text())
    assert [e["text"] for e in shown["codebook"]] == [e["text"] for e in file["codebook"]]
    assert [e["index"] for e in shown["codebook"]] == list(range(16))
    text = " ".join(pco("codebook", "show", "last", cwd=trained).out.split())
    for entry in shown["codebook"]:
        assert entry["text"] in text
    assert shown.pop("ref") == run_id and of_file.pop("ref") == "policy.json"
    assert shown == of_file


def test_log_has_every_rewrite_with_its_fate(trained: Path, store: RunStore) -> None:
    rewrites = [(s.index, r) for s in store.steps() for r in s.rewrites]
    log = pco("codebook", "log", "last", "--json", cwd=trained).json
    assert [(e["update"] - 1, e["variable"], e["kept"]) for e in log] == [
        (step, variable_name(r.variable), r.kept) for step, r in rewrites
    ]
    assert pco("codebook", "log", "last", cwd=trained).out.count("\n  feedback  ") == len(rewrites)


def test_log_shows_both_tries_of_a_rewrite_that_was_refused_at_first(tmp_path: Path) -> None:
    parameters = Parameters("theta", "phi", Codebook((Instinct("old"),)), "psi")
    rewrite = Rewrite(0, "old", "new", "- g", kept=True, earlier=Refused("too long", "9 words"))
    merged = Rewrite(0, "new", "both", "- twin", True, "c3 said it too", origin="merge")
    step = Step(0, 0, 1.0, (), (rewrite, merged), parameters, (0.0,), (0.0,), (0,))
    header = Header(id="", created="2026-01-31T15:45:02+00:00", version="0", task="t", command="",
                    config={}, fingerprints={})  # fmt: skip
    store = RunStore.create(tmp_path / "runs", header)
    store.append(Started(parameters, "expert"))
    store.append(Stepped(step))
    store.close()
    assert pco("codebook", "log", "last", cwd=tmp_path).out == (
        "update 1  c0  kept\n  before    old\n  at first  too long\n  refused   9 words\n"
        "  after     new\n  feedback  - g\n\n"
        "update 1  c0  merge, kept: c3 said it too\n  before    new\n  after     both\n"
        "  feedback  - twin\n"
    )
    shown, _ = pco("codebook", "log", "last", "--json", cwd=tmp_path).json
    assert shown["earlier"] == {"text": "too long", "reason": "9 words"}


def test_log_of_one_part(trained: Path, store: RunStore) -> None:
    rewrites = [r for s in store.steps() for r in s.rewrites]
    for args, variable in ((("--index", "3"), "c3"), (("--part", "theta"), "encoder")):
        log = pco("codebook", "log", "last", *args, "--json", cwd=trained).json
        assert len(log) == sum(variable_name(r.variable) == variable for r in rewrites)
        assert all(e["variable"] == variable for e in log)
    pco("codebook", "log", "last", "--index", "16", cwd=trained).error(2, "0..15")
    wrong = pco("codebook", "log", "last", "--part", "teta", cwd=trained)
    wrong.error(2, "did you mean 'theta'")


def test_diff_of_one_run_is_from_its_first_codebook(trained: Path, store: RunStore) -> None:
    first = store.parameters_at(-1).codebook.texts
    kept = pco("codebook", "show", "last", "--json", cwd=trained).json["codebook"]
    changes = pco("codebook", "diff", "last", "--json", cwd=trained).json
    for k, before in enumerate(first):
        assert (f"c{k}" in changes) == (before != kept[k]["text"])


def test_diff_of_two(trained: Path, run_id: str) -> None:
    other = json.loads((trained / "runs" / run_id / "policy.json").read_text())
    other["codebook"][2]["text"] = "Answer in Latin. \x1b[31m alert \x07"
    other["encoder"] = "theta \x1b]0;title\x07"
    (trained / "other.json").write_text(json.dumps(other))
    result = pco("codebook", "diff", run_id, "other.json", cwd=trained)
    assert "c2" in result.out and "+}" in result.out and "-]" in result.out
    changes = pco("codebook", "diff", run_id, "other.json", "--json", cwd=trained).json
    assert list(changes) == ["encoder", "c2"]
    assert changes["c2"]["after"] == other["codebook"][2]["text"]
    assert "no difference" in pco("codebook", "diff", run_id, run_id, cwd=trained).out
    # What a model wrote does not steer the terminal.
    for out in (result.out, pco("codebook", "show", "other.json", cwd=trained).out):
        assert "alert" in out and "\x1b" not in out and "\x07" not in out


def test_changes_are_marked_word_by_word() -> None:
    assert mark_changes("Count the words.", "Count all the words.") == "Count {+all +}the words."
    assert mark_changes("Cite it twice.", "Cite it once.") == "Cite it [-twice-]{+once+}."
    assert mark_changes("same {}", "same {}") == "same {}"


def test_effect_says_what_it_may_take_and_keeps_what_it_finds(trained: Path, run_id: str) -> None:
    first = pco("codebook", "effect", "last", "0", "--split", "train", cwd=trained)
    assert first.code == 0, first.err
    assert "instinct 0 on 12 inputs: at most 60 calls, 12 of them for the routes" in first.err
    assert "simulated model, train split" in first.out and "95 %" in first.out
    again = pco("codebook", "effect", run_id, "0", "--split", "train", "--json", cwd=trained)
    assert again.json["calls_paid"] == 0 and again.json["simulated"] is True
    [kept] = read_effects(trained / "runs" / run_id)
    assert kept.n == again.json["n"] and kept.difference is not None
    assert again.json["difference"]["mean"] == kept.difference.mean
    assert f"{kept.difference.mean:+.3f}" in first.out


def test_effect_of_a_policy_file_is_measured_and_kept_nowhere(trained: Path, run_id: str) -> None:
    (trained / "runs" / run_id / "policy.json").rename(trained / "p.json")
    found = pco("codebook", "effect", "p.json", "0", "--lm", "simulated", "--json", cwd=trained)
    assert found.code == 0, found.err
    assert not (trained / "runs" / run_id / "effects").exists()
    pco("codebook", "effect", "last", "16", cwd=trained).error(2, "no instinct 16", "0..15")
