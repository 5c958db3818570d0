"""What an expert would tell a claim checker before any training."""

from __future__ import annotations

__all__ = ["SEEDS"]

SEEDS: tuple[str, ...] = (
    "Split the claim into its separate facts and check each of them on its own.",
    "Work out which person, work or place the claim describes without naming it.",
    "In a summary, name every page title that matters, spelled as in the passage.",
    "Write down the bridge: the entity in a passage that leads to the next page.",
    "State in the summary which facts of the claim are confirmed and which are still open.",
    "Search for the page that is still missing, not for what has been found.",
    "Put the exact name of the entity into the query, not a description of it.",
    "Keep a query short: a title and one or two distinctive words.",
    "When the bridge entity is unknown, search with the rarest words of the claim.",
    "Do not repeat an earlier query; change the entity or the angle.",
    "If a name has several meanings, add its kind, such as film, band or village.",
    "Copy dates, numbers and places from the passages word for word.",
    "Compare numbers, years and superlatives exactly; close is not supported.",
    "Watch who did what to whom: claims often swap two related people or works.",
    "Leave out passages that bear on no part of the claim.",
    "Rely on the passages, and say so when only memory supports a fact.",
    "One contradicted fact is enough for NOT_SUPPORTED.",
    "A fact that no passage confirms is not supported.",
    "For comparisons, find the page of each side before deciding.",
    "End with exactly SUPPORTED or NOT_SUPPORTED and nothing else.",
)
