"""The policy file: what stands where, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptcodebook.errors import PolicyError
from promptcodebook.method.state import RoutingStatistics, State
from promptcodebook.method.templates import load_templates
from promptcodebook.policy.file import PolicyFile, read_policy_file
from tests.method.build import config, parameters

STATE = State(
    3,
    parameters(),
    RoutingStatistics(
        ema=(-0.1, 0.2, 0.3, 0.4),
        success=(0.5, 0.6, 0.7, 0.8),
        selected=(1, 2, 3, 4),
        evidence=(0.3, 0.51, 0.25, 0.75),
    ),
)


def file_of(**settings: str) -> PolicyFile:
    return PolicyFile.of(STATE, config(**settings), load_templates("default"), "", ())


def test_success_and_r_bar_stand_under_their_own_names() -> None:
    entries = json.loads(file_of().text())["codebook"]
    assert [entry["success"] for entry in entries] == [0.5, 0.6, 0.7, 0.8]
    assert [entry["ema"] for entry in entries] == [-0.1, 0.2, 0.3, 0.4]
    assert [entry["selected"] for entry in entries] == [1, 2, 3, 4]


def test_the_statistics_come_back_as_they_were(tmp_path: Path) -> None:
    file_of().save(tmp_path / "p.json")
    back = read_policy_file(tmp_path / "p.json").statistics
    assert back.ema == (-0.1, 0.2, 0.3, 0.4)
    assert back.success == (0.5, 0.6, 0.7, 0.8)
    assert back.selected == (1, 2, 3, 4)
    assert back.evidence == (0.3, 0.51, 0.25, 0.75)


def test_a_file_that_does_not_tell_the_evidence_counts_every_tried_entry_as_known() -> None:
    tree = json.loads(file_of().text())
    for entry in tree["codebook"]:
        del entry["evidence"]
    tree["codebook"][3]["selected"] = 0
    back = PolicyFile.model_validate(tree).statistics
    assert back.evidence == () and back.known == (1.0, 1.0, 1.0, 0.0)


def test_concat_is_every_instinct_between_the_fixed_prompt_and_the_output_format() -> None:
    rules = "rule zero\nrule one\nrule two\nrule three"
    assert file_of().concat == rules
    assert file_of(base_prompt="First.", output_format="As JSON.").concat == (
        f"First.\n\n{rules}\n\nAs JSON."
    )
    # Where instincts are inserted as they are, the learned prompts hold no format either.
    assert file_of(output_format="As JSON.", compose="verbatim").concat == rules


def test_the_present_prompt_lies_beside_the_policy_and_is_no_part_of_it() -> None:
    bare = file_of()
    known = bare.with_about(present="You are terse.")
    assert known.fixed_prompt("present").text == "You are terse."
    assert known.digest == bare.digest
    with pytest.raises(PolicyError, match="does not say which prompt"):
        bare.fixed_prompt("present")


def test_a_row_that_differs_by_input_has_no_prompt_of_its_own() -> None:
    for row in ("learned", "untrained", "concatt"):
        with pytest.raises(PolicyError, match="each input gets another"):
            file_of().fixed_prompt(row)


def test_half_a_surrogate_pair_is_written_as_its_escape() -> None:
    broken = file_of().model_copy(update={"base_prompt": "lamp \ud83d"})
    assert json.loads(broken.text())["base_prompt"] == "lamp \ud83d"
    assert broken.text().encode() and broken.digest != file_of().digest
