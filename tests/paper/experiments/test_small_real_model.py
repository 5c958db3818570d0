"""The experiment with a scripted model: it can be stopped anywhere, and pays for nothing twice."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from promptcodebook.calls import Reply, Request, Usage
from promptcodebook.errors import Interrupted
from promptcodebook.paper.experiments import small_real_model as small
from promptcodebook.paper.experiments.experiment import ExperimentRequest, Results
from promptcodebook.paper.experiments.lab import Cell, open_lab
from promptcodebook.paper.experiments.page import markdown
from promptcodebook.paper.experiments.reproduce import measure
from promptcodebook.paper.experiments.small_real_model import EXPERIMENT

SPEC = "http://127.0.0.1:9/v1#scripted"
SCALE: dict[str, Any] = {
    **{"curve": [0, 1], "encoder_steps": 1, "sweep_steps": 1, "text_calls": 24, "test": 6},
    "run": {"update": {"epochs": 1, "batch_size": 32}},
}


class Storyteller:
    """Tells a story when the prompt asks for one and for no Spanish; a call may be the last."""

    def __init__(self, last: int | None = None) -> None:
        self.asked = 0
        self._last = last

    async def __call__(self, request: Request) -> Reply:
        if self._last is not None and self.asked >= self._last:
            raise Interrupted("interrupted by the user")
        self.asked += 1
        if request.embeds:
            length = float(len(request.messages[0].content))
            return Reply("", usage=Usage(1, 9, 0), vector=(length, 1.0, length % 7))
        turn = request.messages[-1].content
        told = "Once upon a time" in turn and "Spanish" not in turn
        text = "Once upon a time there was a lamp." if told else "Thank you for your message."
        return Reply(text, "length", Usage(1, len(turn) // 4, 8))


def _chosen(names: Sequence[str]) -> ExperimentRequest:
    """The experiment, a fraction of its work and only these cells."""

    def cells(order: ExperimentRequest, spec: str) -> list[Cell]:
        return [c for c in small.cells(SCALE, order.seeds, spec) if c.name in names]

    return ExperimentRequest(replace(EXPERIMENT, cells=cells), "quick", 2)


ORDER = _chosen(["route-0", "rules-4", "curve-0"])


def _measured(
    folder: Path, lm: Storyteller, order: ExperimentRequest = ORDER
) -> tuple[Results, str]:
    with closing(open_lab(folder, SPEC, lm=lm)) as lab:
        measured = measure(order, lab, lambda _: None)
        return measured, markdown(order.experiment.page(measured))


@pytest.mark.slow
def test_stopped_anywhere_it_goes_on_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole = Storyteller()
    measured, page = _measured(tmp_path / "whole", whole)
    assert measured.stop is None and not measured.missing
    part, rest, again = Storyteller(whole.asked // 2), Storyteller(), Storyteller()
    stopped, unfinished = _measured(tmp_path / "parts", part)
    assert stopped.stop is not None and stopped.missing
    assert "## Not measured" in unfinished
    assert _measured(tmp_path / "parts", rest)[1] == page
    assert part.asked + rest.asked == whole.asked
    assert _measured(tmp_path / "parts", again)[1] == page
    assert again.asked == 0


@pytest.mark.slow
def test_a_router_that_reads_embeddings_stands_beside_the_one_that_does_not(tmp_path: Path) -> None:
    measured, page = _measured(tmp_path, Storyteller(), _chosen(["route-0", "embed-0"]))
    assert not measured.missing
    words, both = (measured.results[f"{name}-0"]["rows"]["learned"] for name in ("route", "embed"))
    assert (words["calls"], both["calls"]) == (1.0, 2.0)
    assert "### With embeddings" in page
    assert "Learned with embeddings minus learned from words, 1 seed: " in page


def test_a_cell_with_other_settings_is_measured_anew(tmp_path: Path) -> None:
    one = Cell("same", {"a": 1}, lambda lab: {"of": 1})
    two = Cell("same", {"a": 2}, lambda lab: {"of": 2})
    lab = open_lab(tmp_path, SPEC, lm=Storyteller())
    lab.keep(one, {"of": 1})
    assert lab.read(one) == {"of": 1} and lab.read(two) is None
    lab.close()


def test_text_updates_that_a_weak_model_cannot_make_are_a_result(
    tmp_path: Path,
) -> None:
    measured, page = _measured(tmp_path, Storyteller(), _chosen(["texts-off", "texts-always"]))
    assert not measured.missing
    off, always = measured.results["texts-off"], measured.results["texts-always"]
    assert off["calls"] <= SCALE["text_calls"] and always["calls"] <= SCALE["text_calls"]
    assert off["rewrites"] == always["rewrites"] == 0
    assert always["rollouts"] < off["rollouts"]  # its critic was paid out of the same calls
    assert "| always |" in page
    assert "No variant kept a rewrite" in page
    kept = {**measured.results, "texts-always": {**always, "rewrites": 1}}
    assert "No variant kept a rewrite" not in _page(kept, tmp_path)


@pytest.mark.slow
def test_at_equal_calls_known_replies_count_as_well(tmp_path: Path) -> None:
    """Else the variant that repeats what others asked would train longer on the same budget."""
    order = _chosen(["texts-off"])
    first, _ = _measured(tmp_path / "one", Storyteller(), order)
    (tmp_path / "two").mkdir()
    copyfile(tmp_path / "one" / "replies.sqlite", tmp_path / "two" / "replies.sqlite")
    lm = Storyteller()
    again, _ = _measured(tmp_path / "two", lm, order)
    assert lm.asked == 0, "all of it was known"
    one, two = (m.results["texts-off"] for m in (first, again))
    assert (one["rollouts"], one["calls"]) == (two["rollouts"], two["calls"])
    assert 0 < two["calls"] <= SCALE["text_calls"]


def _row(rewards: Sequence[float]) -> dict[str, Any]:
    taken = {"calls": 1.0, "prompt_tokens": 40.0, "completion_tokens": 60.0, "seconds": 0.5}
    return {"rewards": list(rewards), "failed": 0, "fallbacks": None, "longest_prompt": 0, **taken}


def _route(**rows: Sequence[float]) -> Mapping[str, Any]:
    took = {"run": "r", "rollouts": 1472, "calls": 1, "rewrites": 0, "ended": "finished"}
    return {**took, "verdict": "So: much.", "rows": {n: _row(r) for n, r in rows.items()}}


def _page(results: Mapping[str, Mapping[str, Any]], tmp_path: Path) -> str:
    order = ExperimentRequest(EXPERIMENT, "default", 5)
    with closing(open_lab(tmp_path, SPEC, lm=Storyteller())) as lab:
        return markdown(order.experiment.page(Results(order, lab, results, {})))


@pytest.mark.parametrize(("learned", "word"), [(70, "**met**"), (22, "**not met**")])
def test_the_page_says_whether_the_goals_were_met_by_the_intervals(
    tmp_path: Path, learned: int, word: str
) -> None:
    def first(count: int) -> list[float]:
        return [1.0] * count + [0.0] * (100 - count)

    runs = {
        f"route-{seed}": _route(
            none=first(5),
            present=first(12),
            best_single=first(20),
            concat=first(10),
            learned=first(learned + seed),
            oracle=first(80),
        )
        for seed in range(3)
    }
    page = _page(runs, tmp_path)
    assert "| learned - best_single |" in page and "| oracle - none | +0.750" in page
    assert f"beats best single ({word})" in page
    assert "Verdicts: So (3)." in page
    assert f"{'88' if learned == 70 else '24'} %" in page.partition("`learned` earns ")[2]
