"""What `pco` shows of a router that learned from outcomes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import promptcodebook as pco_api
from promptcodebook.errors import PolicyError
from promptcodebook.policy.file import read_policy_file
from tests.cli.invoked import pco
from tests.report.strict import read_page
from tests.run.topics import learn

NOBODY = ("--lm", "http://localhost:9/v1#nobody")
QUERY = "hi, where is my parcel"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pco_api.Run:
    return learn(tmp_path_factory.mktemp("shown") / "runs", config={"update": {"epochs": 6}})


@pytest.fixture(scope="module")
def folder(run: pco_api.Run) -> Path:
    return Path(run.path).parents[1]


def test_explain_says_what_each_instinct_promises(folder: Path) -> None:
    said = pco("explain", "last", QUERY, *NOBODY, cwd=folder)
    assert said.code == 0, said.err
    assert "expected reward with one instinct alone (no model was asked)" in said.out
    promised = re.findall(r"^  (\d\.\d+)  (.+)$", said.out, re.M)
    values = [float(value) for value, _ in promised]
    assert values == sorted(values, reverse=True)
    assert promised[0][1] == "[3] If it is about a parcel, say P.  (chosen)"
    assert [text for _, text in promised if text.startswith("no instinct")]


def test_explain_as_json_adds_up(folder: Path) -> None:
    said = pco("explain", "last", QUERY, *NOBODY, "--json", cwd=folder)
    tree = said.json
    expected, [chosen] = tree["expected"], tree["route"]["indices"]
    assert expected["alone"][chosen] == max(expected["alone"]) == expected["route"]
    assert expected["alone"][chosen] == pytest.approx(
        expected["nothing"] + expected["marginal"][chosen]
    )


def test_the_codebook_says_what_is_learned_of_each_instinct(folder: Path, run: pco_api.Run) -> None:
    said = pco("codebook", "show", "last", cwd=folder)
    assert "learned from 192 outcomes, no model is asked" in said.out
    assert re.search(r"r̄ +adds +selected", said.out)
    tree = pco("codebook", "show", "last", "--json", cwd=folder).json["router"]
    assert tree["outcomes"] == 192 and len(tree["adds"]) == 6
    ranking = run.policy.file.statistics.ranking
    assert ranking is not None and tuple(tree["adds"]) == ranking.bias[1:]
    [row] = [line for line in said.out.splitlines() if line.split()[:1] == ["0"]]
    assert f" {ranking.bias[1]:+.3f} " in row


def test_the_best_single_instinct_can_be_had(
    folder: Path, run: pco_api.Run, tmp_path: Path
) -> None:
    """From the run, from its policy file, and from a saved one: the text that was measured."""
    text = run.rows["best_single"].prompt
    assert text and run.policy.row("best_single").prompt == text
    for ref in ("last", str(Path(run.path) / "policy.json")):
        assert pco("prompt", ref, "--row", "best_single", cwd=folder).out == f"{text}\n"
    run.policy.save(tmp_path / "p.json")
    assert pco("prompt", "p.json", "--row", "best_single", cwd=tmp_path).out == f"{text}\n"
    nothing = pco("prompt", "last", "--row", "none", "--json", cwd=folder)
    assert nothing.json == {"ref": run.id, "row": "none", "prompt": ""}


def test_a_policy_without_one_says_so(trained: Path, run_id: str) -> None:
    said = pco("prompt", run_id, "--row", "best_single", cwd=trained)
    said.error(2, "no best single instinct was measured", "router.kind")
    with pytest.raises(PolicyError, match="each input gets another"):
        pco_api.load_policy(trained / "runs" / run_id / "policy.json", lm="simulated").row(
            "learned"
        )


def test_other_rows_are_evaluated_by_name(trained: Path, run_id: str) -> None:
    none = pco("eval", run_id, "--n", "6", "--row", "none", "--json", cwd=trained)
    assert none.code == 0, none.err
    assert none.json["row"] == "none" and {e["route"] for e in none.json["examples"]} == {None}
    learned = pco("eval", run_id, "--n", "6", "--json", cwd=trained).json
    assert learned["row"] == "learned" and all(e["route"] for e in learned["examples"])
    said = pco("eval", run_id, "--n", "6", "--row", "concat", cwd=trained)
    assert re.search(r"^row +concat$", said.out, re.M)
    pco("eval", run_id, "--row", "oracle", cwd=trained).error(2, "does not know the right")
    pco("eval", run_id, "--row", "orakel", cwd=trained).error(2, "oracle")


def test_the_report_says_how_the_router_learned(folder: Path, run: pco_api.Run) -> None:
    assert pco("report", "last", "-o", "r.html", cwd=folder).code == 0
    text = (folder / "r.html").read_text("utf-8")
    read_page(text)
    assert 'id="router"' in text and "How the router learned" in text
    assert "192 logged rollouts" in text and "over one instinct for all" in text
    assert text.count("for reference") >= 1, "the row without instructions is marked"
    assert "this run explored otherwise" in text
    [row] = [r for r in run.rows.values() if r.reference]
    assert row.name == "none"


def test_the_estimate_is_kept_as_figures(run: pco_api.Run) -> None:
    """Those of the verdict's sentence."""
    from promptcodebook.store.run import RunStore

    concluded = RunStore.open(run.path).outline().conclusion
    assert concluded is not None and concluded.off_policy is not None
    value = concluded.off_policy.value
    assert f"earn {value.mean:.3f} (95 % {value.low:.3f} to {value.high:.3f})" in run.verdict
    assert json.dumps(run.rows["none"].reference) == "true"


def test_distill_tells_what_it_asks_and_what_it_found(trained: Path, run_id: str) -> None:
    """On the simulated model: fresh routes, agreement, the difference, and a policy to use."""
    said = pco("distill", run_id, "--fresh", "4", "--n", "6", cwd=trained)
    assert said.code == 0, said.err
    assert re.search(r"asking [1-4] fresh ones and answering 6 validation examples", said.err)
    assert re.search(r"validation, n = 6: \d\.\d+ \(95 % ", said.out)
    assert "reward, distilled - encoder: " in said.out
    assert "Keep the encoder as the default" in " ".join(said.out.split())
    file = trained / "runs" / run_id / "distilled.json"
    assert f"wrote {file.relative_to(trained)}" in said.out
    shown = pco("codebook", "show", str(file), "--json", cwd=trained).json
    assert shown["router"]["kind"] == "distilled" and shown["router"]["least"] == shown["select"]
    evaluated = pco("eval", str(file), "--n", "6", "--json", cwd=trained)
    assert evaluated.code == 0, evaluated.err
    assert {len(e["route"]) for e in evaluated.json["examples"]} == {shown["select"]}


def test_distill_is_held_to_its_budget(trained: Path, run_id: str) -> None:
    said = pco("distill", run_id, "--fresh", "8", "--budget", "9calls", cwd=trained)
    said.error(2, "calls, and the budget has 9", "--budget")
    assert not (trained / "runs" / run_id / "distilled.json").exists()


def test_distill_as_json(trained: Path, run_id: str) -> None:
    said = pco("distill", run_id, "--fresh", "4", "--n", "4", "-o", "d.json", "--json", cwd=trained)
    tree = said.json
    assert tree["policy"] == "d.json" and 1 <= tree["fresh"] <= 4
    assert tree["non_inferior"] is False
    file = read_policy_file(trained / "d.json")
    assert file.about["distilled"] == {k: v for k, v in tree.items() if k not in ("ref", "policy")}
    again = pco("distill", str(trained / "d.json"), "--fresh", "8", "-o", "e.json", cwd=trained)
    again.error(2, "asks no encoder")
