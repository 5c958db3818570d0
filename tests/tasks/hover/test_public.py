"""HoVer arranged from what its public homes hold."""

import json
from pathlib import Path

import pytest

from promptcodebook.errors import DataError
from promptcodebook.tasks.hover.task import load_hover
from promptcodebook.tasks.public import Rows, url_of
from promptcodebook.tasks.public_sources import source_of

SOURCE = source_of("hover")


def claims(count: int, *titles: str) -> Rows:
    return [
        {
            "uid": f"{titles[-1]}-{n}",
            "claim": f"Claim {n} on {titles[-1]}.",
            "label": "SUPPORTED" if n % 2 else "NOT_SUPPORTED",
            "num_hops": len(titles),
            "supporting_facts": [[title, n] for title in titles],
            "hpqa_id": "h",
        }
        for n in range(count)
    ]


def questions(*titles: str) -> Rows:
    return [
        {"context": {"title": [title, "Other"], "sentences": [[f"On {title}."], ["Else."]]}}
        for title in titles
    ]


def test_the_homes_are_the_official_claims_and_hotpotqa_s_paragraphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PCO_GITHUB_RAW", raising=False)
    assert url_of(SOURCE.files[0]) == (
        "https://raw.githubusercontent.com/hover-nlp/hover/main/data/hover/"
        "hover_train_release_v1.1.json"
    )
    assert {remote.repo for remote in SOURCE.files[1:]} == {"hotpotqa/hotpot_qa"}


def test_three_page_claims_whose_pages_are_there_in_the_paper_s_split() -> None:
    pool = [*claims(100, "A", "B", "Zo\u00eb"), *claims(9, "A", "B"), *claims(9, "A", "B", "Lost")]
    made = SOURCE.arrange([pool, questions("B", "A"), questions("Zoe\u0308", "A")])
    assert {name: len(rows) for name, rows in made.items()} == {
        "train": 20,
        "val": 40,
        "test": 40,
        "corpus": 4,
    }
    row = made["test"][0]
    # The title as the corpus spells it, so that the page can be found by it.
    assert row["gold_titles"] == ["A", "B", "Zoe\u0308"]
    assert {"uid", "claim", "label", "num_hops", "supporting_facts", "hpqa_id"} <= set(row)
    assert made["corpus"][0] == {"title": "A", "sentences": ["On A."]}


def test_a_claim_in_another_form_is_named() -> None:
    with pytest.raises(DataError, match="record 1: the label '\\?' is neither"):
        SOURCE.arrange([[{**claims(1, "A", "B", "C")[0], "label": "?"}], questions("A")])


def test_fetched_and_loaded(tmp_path: Path) -> None:
    """The rows as the fetch writes them are what the task reads."""
    made = SOURCE.arrange([claims(100, "A", "B", "C"), questions("A", "B"), questions("C")])
    for name, rows in made.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    task = load_hover(tmp_path)
    assert [len(part) for _, part in task.dataset.items()] == [20, 40, 40]
    assert "rest on pages" not in task.description
