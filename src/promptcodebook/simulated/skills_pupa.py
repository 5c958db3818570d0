"""Hidden skills of the pupa world: kinds of personal data, keeping the task, and responding.

Written apart from the seed instincts of any task. Docs: docs/simulated.md.
"""

from __future__ import annotations

from promptcodebook.simulated.skill import Skill

__all__ = ["PUPA_SKILLS"]

_DATA = (
    Skill(
        "people",
        ("name of people", "person name", "first name", "surname", "people by role"),
        ("name", "person", "personal name"),
        (
            "Put a role in place of each person name, first name and surname alike.",
            "Refer to people by role, never by name.",
        ),
    ),
    Skill(
        "organisations",
        ("company name", "employer", "organization name", "institution"),
        ("company", "organization", "employer", "firm", "university", "school"),
        (
            "Replace a company name or employer by its kind.",
            "Speak of an institution in general, not by its name.",
        ),
    ),
    Skill(
        "places",
        ("city country", "place name", "location", "address"),
        ("place", "city", "country", "address", "location"),
        (
            "Leave out every location, from street address to country.",
            "Blur each place name to a region of no particular name.",
        ),
    ),
    Skill(
        "dates",
        ("birth date", "date year", "exact date", "age of"),
        ("date", "year", "birthday", "age"),
        (
            "Take out each exact date and the age of people.",
            "Replace a birth date or year by a rough span.",
        ),
    ),
    Skill(
        "numbers",
        ("phone number", "account number", "identification number", "numeric detail"),
        ("number", "phone", "account"),
        (
            "Remove phone numbers, account numbers and other numeric detail.",
            "Drop any identification number.",
        ),
    ),
    Skill(
        "contacts",
        ("mail address", "email", "contact detail", "handle user"),
        ("mail", "email", "contact"),
        (
            "Strip email and other contact details.",
            "Leave no mail address in the text.",
        ),
    ),
    Skill(
        "links",
        ("web link", "url", "website", "domain"),
        ("link", "website", "url"),
        (
            "Delete each url or say that there is a web link.",
            "Describe a website without its domain.",
        ),
    ),
    Skill(
        "titles",
        ("job title", "position held", "profession", "occupation"),
        ("job", "title", "manager", "director", "position", "role"),
        (
            "Generalise a job title to a broad occupation.",
            "Do not tell the position held; a broad profession will do.",
        ),
    ),
    Skill(
        "products",
        ("project name", "product name", "internal name", "brand name"),
        ("project", "product", "brand"),
        (
            "Give a project name or product name a neutral label.",
            "Hide an internal name behind a neutral word.",
        ),
    ),
    Skill(
        "rare_words",
        ("unusual term", "identifying detail", "rare term", "telling detail"),
        ("detail", "term"),
        (
            "Drop any identifying detail even if it is no name.",
            "Replace an unusual term that could point to someone.",
        ),
    ),
)

_TASKS = (
    Skill(
        "keep_task",
        ("keep the task", "task intact", "what help is needed", "state the task"),
        ("task lost", "vague request", "quality", "useless request"),
        (
            "State the task completely so that the outside model knows what help is needed.",
            "Keep the task intact: form, length and purpose.",
        ),
    ),
    Skill(
        "letters",
        ("tone of letter", "salutation", "formal letter", "addressee relation"),
        ("letter", "mail", "email", "message", "reply"),
        (
            "For a letter give its tone and the addressee relation.",
            "Mention salutation and register of a formal letter.",
        ),
    ),
    Skill(
        "translations",
        ("target language", "source language", "translate structure"),
        ("translate", "translation", "english", "spanish", "chinese", "french", "german"),
        (
            "Name source language and target language of a translation.",
            "State the target language and keep the register.",
        ),
    ),
    Skill(
        "applications",
        ("skills and experience", "cover letter point", "qualification in general"),
        ("resume", "cv", "cover letter", "job", "application", "experience", "interview"),
        (
            "Describe skills and experience without saying whose they are.",
            "Give each qualification in general words.",
        ),
    ),
    Skill(
        "stories",
        ("plot point", "genre and mood", "character sketch"),
        ("story", "write", "character", "scene", "novel", "script", "poem"),
        (
            "Pass on genre and mood and each plot point.",
            "Give a character sketch with invented names.",
        ),
    ),
    Skill(
        "code_and_data",
        ("placeholder value", "code structure", "dummy data"),
        ("code", "data", "table", "function", "error", "file", "list"),
        (
            "Show the code structure with dummy data.",
            "Put a placeholder value into each field of the data.",
        ),
    ),
)

_REPLIES = (
    Skill(
        "answer_query",
        ("answer original", "original query directly", "query itself in full"),
        ("reference better", "target better", "quality 0", "not as good", "worse than"),
        (
            "In the end answer the original query directly and in full.",
            "Use the outside help and settle the query itself in full.",
        ),
    ),
    Skill(
        "restore_details",
        ("restore detail", "fill in private", "fill gap", "placeholder restore"),
        ("placeholder left", "my", "our", "i am"),
        (
            "Restore the details that the outside answer lacks.",
            "Fill each gap in the end, so that no placeholder stays.",
        ),
    ),
    Skill(
        "same_form",
        ("form wanted", "format of query", "length wanted", "same language"),
        ("paragraph", "words", "list", "short", "format", "professional"),
        (
            "Reply in the form wanted and in the same language.",
            "Respect the length wanted.",
        ),
    ),
)

_GENERAL = (
    Skill(
        "read_twice",
        ("read the request again", "reread", "sentence by sentence"),
        ("reread",),
        (
            "Go through the text sentence by sentence before passing it on.",
            "Reread the outgoing text once more.",
        ),
        general=True,
    ),
    Skill(
        "stranger_test",
        ("stranger", "could identify", "who is meant"),
        ("stranger",),
        (
            "Ask whether a stranger could tell who is meant.",
            "Nothing may remain by which anyone could identify someone.",
        ),
        general=True,
    ),
)

PUPA_SKILLS: tuple[Skill, ...] = (*_DATA, *_TASKS, *_REPLIES, *_GENERAL)
