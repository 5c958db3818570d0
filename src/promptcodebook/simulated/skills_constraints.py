"""Hidden skills of the constraints world: one a kind of constraint, and general ones.

Written apart from the seed instincts of any task. Docs: docs/simulated.md.
"""

from __future__ import annotations

from promptcodebook.simulated.skill import Skill

__all__ = ["CONSTRAINT_SKILLS"]

_LENGTH = (
    Skill(
        "max_words",
        ("word limit", "count word", "trim word", "word budget", "maximum word", "cut word"),
        ("most word", "no more word", "fewer word", "word allowed", "limit word", "under word"),
        (
            "If a maximum number of words is set, count the words of the draft and trim it.",
            "Treat a word limit as hard: tally every word and shorten until it fits.",
        ),
        against=("write at length", "be thorough and detailed", "long detailed answer"),
    ),
    Skill(
        "min_words",
        ("minimum length", "count word", "long enough", "least word", "expand enough word"),
        ("least word", "minimum word", "more than word", "word needed", "no fewer word"),
        (
            "If at least so many words are wanted, expand with detail until it is long enough.",
            "Reach the minimum length: keep adding relevant detail and recount the words.",
        ),
        against=("be brief", "as short as possible", "keep it concise"),
    ),
    Skill(
        "sentences",
        ("count sentence", "number of sentence", "sentence exact", "many sentence"),
        ("exact sentence", "in sentence", "number sentence"),
        (
            "When the number of sentences is fixed, count each sentence before finishing.",
            "Write exactly as many sentences as asked, one full stop for each.",
        ),
    ),
    Skill(
        "paragraphs",
        ("separate paragraph", "blank line paragraph", "number of paragraph", "count paragraph"),
        ("exact paragraph", "paragraph blank", "paragraph empty", "paragraph total"),
        (
            "Separate paragraphs by a blank line and keep to the number asked for.",
            "Count the paragraphs: one blank line stands between each pair.",
        ),
    ),
    Skill(
        "letter_count",
        ("count letter", "letter often", "letter occur", "letter frequency"),
        ("letter time", "letter least", "letter occur", "letter appear"),
        (
            "If a letter must occur a number of times, choose words rich in that letter.",
            "Count how often the required letter occurs and add words until it is enough.",
        ),
    ),
)

_STRUCTURE = (
    Skill(
        "bullets",
        ("bullet point", "dash line", "bullet list", "bullet mark", "hyphen item"),
        ("bullet", "line start dash", "hyphen line"),
        (
            "Put bullet points on lines of their own with a dash, exactly as many as asked.",
            "Start each bullet line with a dash and a blank and count the bullet points.",
        ),
        against=("flow prose", "avoid list"),
    ),
    Skill(
        "numbered",
        ("number list", "number step", "number each line", "number item", "list number"),
        ("number list", "number 1", "number line", "number step", "number point"),
        (
            "For a numbered list, number each line from one upward without gaps.",
            "Number the list items in order, one item on each line.",
        ),
    ),
    Skill(
        "alphabetical",
        ("alphabet order", "alphabetical", "sort item letter", "a to z"),
        ("alphabetical", "alphabet", "bullet line", "a to z"),
        (
            "Sort the items of the list into alphabetical order before writing them down.",
            "Order list lines from A to Z by their first letter.",
        ),
    ),
    Skill(
        "headings",
        ("section heading", "heading line", "hash heading", "heading mark"),
        ("heading", "section head"),
        (
            "Mark every section heading with two hash signs on a line of its own.",
            "Give each part a heading line and keep to the number of headings asked for.",
        ),
    ),
    Skill(
        "title",
        ("title bracket", "angle bracket", "title line", "double bracket"),
        ("title",),
        (
            "Wrap the title in double angle brackets on its own line.",
            "Where a title is asked for, put it inside double angle bracket signs.",
        ),
    ),
    Skill(
        "json",
        ("json object", "valid json", "raw json", "json key"),
        ("json",),
        (
            "Return one raw JSON object with the keys asked for and no text around it.",
            "Make the whole answer valid JSON, without a code fence.",
        ),
    ),
    Skill(
        "two_versions",
        ("two version", "six asterisk", "asterisk line", "alternative separate asterisk"),
        ("two version", "six asterisk", "two different", "part around line"),
        (
            "Write two different versions with a line of six asterisks between them.",
            "Keep the two versions apart by one line of asterisks.",
        ),
    ),
    Skill(
        "placeholders",
        ("square bracket", "placeholder bracket", "fill placeholder", "placeholder"),
        ("placeholder", "square bracket"),
        (
            "Leave placeholders in square brackets, as many as are wanted.",
            "Write each placeholder inside square brackets for the reader to fill.",
        ),
    ),
)

_WORDING = (
    Skill(
        "include",
        ("keyword", "required word", "must appear", "include word", "word include", "mention word"),
        ("include word", "word include", "lack", "must contain", "mention word", "use word"),
        (
            "Work every required word into the text as it is spelled in the task.",
            "Tick off each keyword that the answer must include.",
        ),
    ),
    Skill(
        "avoid",
        ("forbidden word", "banned word", "avoid word", "word not allowed", "synonym"),
        ("avoid word", "not use word", "forbidden", "without word", "do not use", "do not mention"),
        (
            "Scan for forbidden words and put a synonym in their place.",
            "Keep a list of banned words and replace each of them.",
        ),
    ),
    Skill(
        "no_commas",
        ("no comma", "without comma", "avoid comma", "comma free", "comma replace"),
        ("comma",),
        (
            "If commas are ruled out, write short clauses without commas.",
            "Check that there is no comma anywhere and split the sentence instead.",
        ),
    ),
    Skill(
        "no_digits",
        ("no digit", "without digit", "spell out number", "number in words", "avoid digit"),
        ("digit", "numeral"),
        (
            "Spell out numbers so that no digit is left.",
            "Write each number in words when digits are not wanted.",
        ),
    ),
    Skill(
        "exact_numbers",
        ("number exact", "how many figure", "count figure", "count number", "numeric"),
        ("exact number", "number asked", "number digit"),
        (
            "Use exactly as many figures as are demanded, and count the figures at the end.",
            "Count each numeric value in the draft against the number demanded.",
        ),
    ),
    Skill(
        "lowercase",
        ("lower case", "lowercase", "no capital", "small letter"),
        ("lower case", "lowercase", "no capital", "capital letter"),
        (
            "Keep every letter in lower case, names and sentence starts included.",
            "Use no capital letters when lowercase is wanted.",
        ),
        against=("all capital", "upper case"),
    ),
    Skill(
        "uppercase",
        ("upper case", "all capital", "capital letter", "uppercase"),
        ("upper case", "all capital", "in capital", "uppercase", "must be capital"),
        (
            "Write everything in upper case if all capitals are demanded.",
            "Set the complete text in capital letters when the task says so.",
        ),
        against=("lower case", "lowercase"),
    ),
    Skill(
        "start_with",
        ("open with", "first word", "begin with exact", "start with exact", "opening phrase"),
        ("start with", "begin with", "open with", "first word"),
        (
            "Begin with the exact opening phrase demanded, nothing before it.",
            "Copy the demanded opening phrase as the very first words.",
        ),
    ),
    Skill(
        "end_with",
        ("end with exact", "closing phrase", "last word", "finish with exact"),
        ("end with", "finish with", "last word", "close with"),
        (
            "Finish with the exact closing phrase demanded and add nothing after it.",
            "Let the demanded closing phrase be the last words.",
        ),
    ),
    Skill(
        "quoted",
        ("quotation mark", "double quote", "wrap quote", "enclose quote"),
        ("quotation mark", "double quote", "in quote"),
        (
            "Enclose the complete reply in double quotation marks.",
            "Open and close the whole reply with a quotation mark.",
        ),
    ),
    Skill(
        "postscript",
        ("postscript", "p s paragraph", "p s line", "p s end"),
        ("postscript", "p s"),
        (
            "Add a postscript as the final paragraph.",
            "Close with a separate postscript paragraph.",
        ),
    ),
)

_GENERAL = (
    Skill(
        "list_requirements",
        ("list requirement", "list constraint", "note constraint", "identify requirement"),
        ("requirement", "constraint"),
        (
            "Before drafting, list every requirement of the task.",
            "First note each constraint that the request states.",
        ),
        general=True,
    ),
    Skill(
        "verify_at_end",
        ("check requirement", "verify constraint", "check one by one", "final check", "recheck"),
        ("verify", "checker"),
        (
            "Do a final check of the draft against the requirements one by one.",
            "Verify each constraint on the finished draft and repair what fails.",
        ),
        general=True,
    ),
    Skill(
        "nothing_extra",
        ("no preamble", "nothing else", "no introduction", "without comment", "only answer"),
        ("preamble", "extra text"),
        (
            "Give the text itself with no preamble and no closing comment.",
            "Output nothing else besides what was requested.",
        ),
        general=True,
    ),
)

CONSTRAINT_SKILLS: tuple[Skill, ...] = (*_LENGTH, *_STRUCTURE, *_WORDING, *_GENERAL)
