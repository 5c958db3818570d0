"""How a constraint is put to the model: several phrasings per kind, each exact about its check."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import cast

__all__ = ["WORDINGS", "phrased"]

WORDINGS: Mapping[str, tuple[str, ...]] = {
    "max_words": (
        "Use at most {n} words.",
        "Keep it to {n} words or fewer.",
        "The answer must not be longer than {n} words.",
        "Stay within a limit of {n} words.",
    ),
    "min_words": (
        "Use at least {n} words.",
        "The answer should have {n} words or more.",
        "Write no fewer than {n} words.",
        "Make it at least {n} words long.",
    ),
    "sentences": (
        "Write exactly {n} sentences.",
        "The whole answer should have {n} sentences, no more and no fewer.",
        "Use {n} sentences in total.",
        "Say it in exactly {n} sentences.",
    ),
    "paragraphs": (
        "Write exactly {n} paragraphs, separated by blank lines.",
        "Divide the answer into {n} paragraphs with an empty line between them.",
        "There should be {n} paragraphs in total, with a blank line after each but the last.",
        "Use blank lines to split the answer into exactly {n} paragraphs.",
    ),
    "bullets": (
        'Include exactly {n} bullet points, each on a line starting with "- ".',
        'Use {n} bullets in total; a bullet is a line that begins with "- ".',
        'Part of the answer should be a list of exactly {n} lines starting with "- ".',
        'Give {n} bullet points, no more and no fewer, written as "- " lines.',
    ),
    "numbered": (
        'Include a numbered list with exactly {n} items, on lines "1. " to "{n}. ".',
        'Number {n} points as "1. ", "2. " and so on, each on its own line.',
        'Give exactly {n} numbered lines, starting with "1. " and ending with "{n}. ".',
        'Use a list of {n} items whose lines are numbered "1. " up to "{n}. ".',
    ),
    "include": (
        "Make sure these words occur: {words}.",
        "Use each of the following words: {words}.",
        "Work in these words: {words}.",
        "The answer must contain: {words}.",
    ),
    "avoid": (
        "Do not use any of these words: {words}.",
        "Avoid the following words: {words}.",
        "These words must not occur: {words}.",
        "Write it without using: {words}.",
    ),
    "no_commas": (
        "Do not use any commas.",
        "Write without commas.",
        "There must not be a single comma in the answer.",
        "Leave out all commas.",
    ),
    "lowercase": (
        "Use only lower case letters.",
        "Write everything in lower case; no capital letters at all.",
        "There must be no capital letters in the answer.",
        "All letters should be small ones.",
    ),
    "uppercase": (
        "Write everything in capital letters.",
        "Use only upper case letters.",
        "The whole answer must be in capitals; no small letters.",
        "All letters should be capitals.",
    ),
    "title": (
        "Include a title in double angle brackets, such as <<a good title>>.",
        "Give it a title, written as <<title>>.",
        "The answer needs a title wrapped in << and >>.",
        "Put a title between << and >> on one line.",
    ),
    "json": (
        "Answer with one JSON object and nothing else; it must have the keys {keys}.",
        "The whole answer must be a JSON object with the keys {keys}.",
        "Format everything as a single JSON object that has these keys: {keys}.",
        "Return only a JSON object, without code fences, with the keys {keys}.",
    ),
    "start_with": (
        'Start the answer with exactly these words: "{text}" (without the quotation marks).',
        'The first words must be "{text}" (without the quotation marks).',
        'Begin with the phrase "{text}", leaving out the quotation marks.',
        'Open with "{text}" and nothing before it; do not write the quotation marks.',
    ),
    "end_with": (
        'End the answer with exactly "{text}" (without the quotation marks).',
        'The last words must be "{text}" (without the quotation marks).',
        'Finish with the phrase "{text}", leaving out the quotation marks.',
        'Close with "{text}" and nothing after it; do not write the quotation marks.',
    ),
    "exact_numbers": (
        "Use exactly {n} numbers written in digits.",
        "There should be {n} numbers in digits in the answer, no more and no fewer.",
        "Mention numbers in digits exactly {n} times.",
        "The answer must contain {n} runs of digits in total.",
    ),
    "quoted": (
        "Put the whole answer in double quotation marks.",
        "Wrap everything in double quotation marks.",
        'The answer must start with " and end with ".',
        "Enclose the entire answer in straight double quotation marks.",
    ),
    "postscript": (
        'Add a postscript as the last paragraph, starting with "P.S.".',
        'End with a separate paragraph that begins with "P.S.".',
        'The last paragraph should be a postscript that starts with "P.S.".',
        'After a blank line, close with a "P.S." paragraph.',
    ),
    "letter_count": (
        "Use the letter {letter} at least {n} times.",
        "The letter {letter} should occur {n} times or more.",
        "Make sure that the letter {letter} appears at least {n} times.",
        "There must be no fewer than {n} occurrences of the letter {letter}.",
    ),
    "two_versions": (
        'Give two different versions, separated by a line "******".',
        "Write it twice in different ways, with a line of six asterisks (******) in between.",
        'Offer exactly two versions; the only thing between them is a line "******".',
        "Provide two alternatives divided by a line that holds only ******.",
    ),
    "placeholders": (
        "Use at least {n} placeholders in square brackets, such as [name].",
        "Leave {n} or more gaps to fill in, written in square brackets like [date].",
        "Include no fewer than {n} placeholders like [address].",
        "There should be at least {n} placeholders in square brackets.",
    ),
    "headings": (
        'Use exactly {n} headings, each a line starting with "## ".',
        'Structure it with {n} headings written as "## " lines.',
        'There must be exactly {n} lines that start with "## " as headings.',
        'Divide it with {n} section headings; a heading line begins with "## ".',
    ),
    "no_digits": (
        "Do not use any digits.",
        "Write without digits; spell numbers out if you need them.",
        "There must be no digit in the answer.",
        "Leave out all digits from 0 to 9.",
    ),
    "alphabetical": (
        'Include a list of exactly {n} lines starting with "- ", in alphabetical order.',
        'Give {n} list lines beginning with "- " and sort them alphabetically.',
        'Use an alphabetically sorted list with {n} "- " lines.',
        'List exactly {n} things alphabetically, each on a line starting with "- ".',
    ),
}  # fmt: skip


def phrased(constraint: Mapping[str, object], rng: random.Random) -> str:
    """One constraint in words, in a phrasing drawn from `rng`."""
    text = rng.choice(WORDINGS[str(constraint["kind"])])
    for name, value in constraint.items():
        if isinstance(value, list):
            value = ", ".join(cast("list[str]", value))
        text = text.replace(f"{{{name}}}", str(value))
    return text
