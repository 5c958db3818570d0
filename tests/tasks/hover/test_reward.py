"""The rewards and their feedback."""

import pytest

from promptcodebook.errors import RewardError
from promptcodebook.tasks.hover.score import retrieval_reward, reward
from promptcodebook.types import Example, Output

CLAIM = Example(
    "c1", "A claim.", "SUPPORTED", fields={"gold_titles": ["Mill", "The River", "Hill", "Mill"]}
)


def found(label: str, *hops: tuple[str, ...]) -> Output:
    return Output(label, fields={"retrieved": [list(hop) for hop in hops]})


ALL = (("Mill", "Barn"), ("River",), ("Hill",))


@pytest.mark.parametrize(
    ("output", "both", "pages"),
    [
        (found("SUPPORTED", *ALL), 1.0, 1.0),
        (found("NOT_SUPPORTED", *ALL), 0.0, 1.0),
        (found("undecided", *ALL), 0.0, 1.0),
        (found("SUPPORTED", *ALL[:2]), 0.0, 0.0),
        (Output("SUPPORTED"), 0.0, 0.0),
        (Output(""), 0.0, 0.0),
    ],
)
def test_pages_and_label_beside_pages_alone(output: Output, both: float, pages: float) -> None:
    assert reward(CLAIM, output).value == both
    assert retrieval_reward(CLAIM, output).value == pages


def test_feedback_names_what_each_hop_found_and_what_is_missing() -> None:
    said = reward(CLAIM, found("NOT SUPPORTED", ("Mill", "Barn"), ("Lake",), ("River",))).feedback
    assert "Hop 1 (search with the claim) found 'Mill'; still missing: 'The River', 'Hill'." in said
    assert "Hop 2 (query2) found none of the pages still needed; still missing: 'The R" in said
    assert (
        "Hop 3 (query3) found 'The River'; still missing: 'Hill'. Never retrieved: 'Hill'" in said
    )
    assert said.endswith("The label NOT_SUPPORTED is wrong; the right label is SUPPORTED.")
    assert "Barn" not in said


def test_a_hop_after_the_last_page_is_not_blamed() -> None:
    said = reward(CLAIM, found("SUPPORTED", ("Mill", "River", "Hill"), (), ("Mill",))).feedback
    assert "Hop 2 (query2) had nothing left to find. Hop 3 (query3) had nothing left" in said
    assert said.endswith("All needed pages were retrieved. The label SUPPORTED is right.")


def test_a_label_that_cannot_be_read_is_quoted() -> None:
    said = reward(CLAIM, found("perhaps", *ALL)).feedback
    assert "could not be read from 'perhaps': it must be SUPPORTED or NOT_SUPPORTED" in said
    assert (
        "Nothing was retrieved; needed: 'Mill', 'The" in reward(CLAIM, Output("perhaps")).feedback
    )


def test_an_example_without_gold_pages_cannot_be_judged() -> None:
    for fields in ({}, {"gold_titles": []}, {"gold_titles": "Mill"}):
        with pytest.raises(RewardError, match="c1 has no gold titles"):
            reward(Example("c1", "A claim.", "SUPPORTED", fields=fields), Output("SUPPORTED"))
