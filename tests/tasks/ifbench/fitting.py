"""Arguments that fit each constraint."""

from promptcodebook.tasks.ifbench.score import IFBENCH, IFEVAL

KWARGS: dict[str, object] = {
    "N": 2,
    "capital_frequency": 1,
    "capital_relation": "at least",
    "end_phrase": "The end.",
    "first_word": "salt",
    "forbidden_words": ["salt"],
    "frequency": 2,
    "keyword": "salt",
    "keyword1": "salt",
    "keyword2": "sugar",
    "keyword3": "tea",
    "keyword4": "jam",
    "keyword5": "oil",
    "keywords": ["salt", "tea"],
    "language": "de",
    "let_frequency": 3,
    "let_relation": "less than",
    "letter": "q",
    "m": 2,
    "max_words": 9,
    "min_words": 2,
    "n": 1,
    "n_end": 7,
    "n_start": 0,
    "nth_paragraph": 1,
    "num_bullets": 2,
    "num_highlights": 2,
    "num_paragraphs": 2,
    "num_placeholders": 2,
    "num_sections": 2,
    "num_sentences": 3,
    "num_words": 5,
    "options": "red/green",
    "percentage": 50,
    "postscript_marker": "P.S.",
    "prompt_to_repeat": "Tell me of salt.",
    "reference_text": "Salt keeps fish.",
    "relation": "at least",
    "section_spliter": "Part",
    "sep": "...",
    "small_n": 2,
    "word": "salt",
}
"""A value for every argument that any constraint takes."""


def fitting(instruction_id: str) -> dict[str, object]:
    takes = (IFBENCH.get(instruction_id) or IFEVAL[instruction_id]).takes
    return {name: KWARGS[name] for name in takes}
