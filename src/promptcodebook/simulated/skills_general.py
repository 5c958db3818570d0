"""Hidden skills for a user's own data: what visible features of an input call for.

Docs: docs/simulated.md.
"""

from __future__ import annotations

from promptcodebook.simulated.skill import Skill

__all__ = ["GENERAL_SKILLS"]

_SPECIFIC = (
    Skill(
        "who",
        ("full name", "name person", "exact name"),
        ("who", "whose", "person", "author", "name"),
        ("Give the full name of the person asked about.", "Name the person by the exact name."),
    ),
    Skill(
        "when",
        ("date format", "exact date", "year", "date"),
        ("when", "year", "date", "day", "month"),
        ("Give the exact date or year, in a plain date format.", "Look for the date first."),
    ),
    Skill(
        "where",
        ("exact place", "location", "place name"),
        ("where", "city", "country", "place", "located", "address"),
        ("State the location by its place name.", "Name the exact place, not its region."),
    ),
    Skill(
        "quantity",
        ("unit", "calculate carefully", "recompute", "arithmetic"),
        ("how many", "how much", "total", "percent", "price", "cost", "sum", "number"),
        (
            "Calculate carefully and keep the unit with the number.",
            "Write down the arithmetic and recompute it.",
        ),
    ),
    Skill(
        "why",
        ("cause effect", "explain cause", "give reason"),
        ("why", "reason", "explain", "cause", "because"),
        ("Explain the cause before the effect.", "Give the reason first, then its evidence."),
    ),
    Skill(
        "how_to",
        ("ordered steps", "step in order", "sequence of steps"),
        ("how do", "how can", "how to", "instruction", "steps", "set up"),
        ("Give ordered steps that can be followed.", "List each step in order."),
    ),
    Skill(
        "yes_no",
        ("yes or no", "clear yes", "verdict first"),
        ("is it", "does", "can i", "whether", "true", "false", "is the"),
        ("Begin with a clear yes or no.", "State the verdict first: yes or no."),
    ),
    Skill(
        "compare",
        ("both sides", "same criteria", "compare each"),
        ("compare", "better", "difference", "versus", "than", "which"),
        ("Compare each option by the same criteria.", "Weigh both sides on the same criteria."),
    ),
    Skill(
        "summarise",
        ("main point", "key point", "essential"),
        ("summary", "summarize", "summarise", "brief", "shorten", "tl"),
        ("Keep the main points and drop detail.", "State each key point once."),
    ),
    Skill(
        "classify",
        ("allowed label", "label exactly", "one category"),
        ("classify", "category", "label", "sentiment", "topic", "tag"),
        ("Answer with one of the allowed labels only.", "Pick one category, spelled as given."),
    ),
    Skill(
        "extract",
        ("quote source", "copy span", "from the passage", "verbatim"),
        ("extract", "passage", "context", "according", "document", "paragraph", "text"),
        ("Copy the span from the passage verbatim.", "Take the answer from the passage alone."),
    ),
    Skill(
        "translate",
        ("idiom", "keep meaning", "target language"),
        ("translate", "translation", "french", "german", "spanish", "language"),
        ("Keep the meaning and idioms of the target language.", "Translate sense, keep meaning."),
    ),
    Skill(
        "code",
        ("code block", "edge case", "runnable code"),
        ("code", "function", "python", "sql", "bug", "error", "script", "api"),
        ("Give runnable code and think of edge cases.", "Put the code in one code block."),
    ),
    Skill(
        "json_format",
        ("valid json", "json object", "schema"),
        ("json", "schema", "keys", "fields"),
        ("Return valid JSON only.", "Answer with one JSON object that fits the schema."),
    ),
    Skill(
        "list_format",
        ("bullet", "one item per line", "list mark"),
        ("list", "bullet", "items", "examples", "name three", "enumerate"),
        ("Put one item per line.", "Use bullets, one per item."),
    ),
    Skill(
        "length",
        ("word limit", "length limit", "count word"),
        ("words", "sentence", "short", "characters", "length"),
        ("Keep to the length limit and count the words.", "Mind any word limit."),
    ),
    Skill(
        "customer",
        ("apologize", "cite policy", "next step for customer", "empathy"),
        ("refund", "order", "ticket", "account", "late", "customer", "complaint", "delivery"),
        ("Cite the policy and name the next step for the customer.", "Show empathy, cite policy."),
    ),
    Skill(
        "negation",
        ("negation", "watch for not", "exception"),
        ("not", "never", "except", "without", "unless"),
        ("Watch for negation and exceptions.", "Mind each exception that is stated."),
    ),
    Skill(
        "multi_part",
        ("each part", "sub question", "answer every part"),
        ("and also", "both", "respectively", "as well as", "first second"),
        ("Answer every part of the question.", "Split it into sub questions, treat each part."),
    ),
)

_GENERAL = (
    Skill(
        "answer_format",
        ("only the answer", "final answer alone", "no extra text"),
        ("expected", "format"),
        ("Give only the answer.", "End with the final answer alone, no extra text."),
        general=True,
    ),
    Skill(
        "reread",
        ("reread question", "check against question", "check answer"),
        ("question",),
        ("Reread the question and check the answer against it.", "Check the answer at the end."),
        general=True,
    ),
    Skill(
        "evidence",
        ("evidence", "do not guess", "grounded", "support claim"),
        ("fact",),
        ("Rest every claim on evidence.", "Do not guess: support each claim."),
        general=True,
    ),
)

GENERAL_SKILLS: tuple[Skill, ...] = (*_SPECIFIC, *_GENERAL)
