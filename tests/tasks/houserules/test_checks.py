"""Each house rule holds where it is kept and fails where it is nearly kept."""

import pytest

from promptcodebook.errors import TaskError
from promptcodebook.tasks.houserules.task import (
    KINDS,
    MARKS,
    check,
    guess_language,
    plain,
    spoiled,
)

PLAIN = "Thank you for your message. We are sorry for the trouble and will call you tomorrow."

KEPT: dict[str, tuple[str, ...]] = {
    "spanish": (
        "Lo sentimos mucho, su factura está en el correo y la puede ver hoy.",
        "¿Puede estar en la casa?\n¿Puede estar en la mesa?",
    ),
    "french": (
        "Nous sommes ouverts le samedi et vous pouvez venir avec votre chien.",
        "Je ne sais pas si c'est une bonne idée.",
    ),
    "japanese": ("まず、板を立ててください。", "ネジをしめる (4 mm)"),
    "chinese": ("您的订单已经取消。", "好的，我们会取消 order 17。"),
    "html": ("<html>\n<body>Gone.</body>", "Here: <p class='x'>You are off the list.</p>"),
    "russian": ("Ваш адрес удалён.", "Мы больше не пишем вам (newsletter)."),
    "story": ("Once upon a time there was a lamp.", "It begins: ONCE UPON A TIME, a sofa."),
    "letter": ("Dear customer,\nyour money is on its way.", '"Dear Sir or Madam, it is there."'),
    "dialogue": ("Customer: Where is it?\nClerk: Here.", "**Clerk:** Yes?\n**Customer:** Hi."),
    "recipe": ("Ingredients:\n- a box\n- tape", "For this you need ingredients.\n1. One box"),
    "emoji": ("Oh no 🙈", "☀ and a new bowl"),
    "python": (
        "import os",
        "```python\nx = 1\n```",
        "Here:\n    print('hello')",
        "def log_in(self):",
    ),
    "json": ('{"street": "x", "town": "y"}', 'Here it is:\n```json\n{\n "a": 1,\n "b": {'),
    "one_sentence": ("It is five years.", "We will send you a new lid, dear friend"),
}

BROKEN: dict[str, tuple[str, ...]] = {
    "spanish": (PLAIN, "La", "O senhor não está em casa, como você foi ao mercado com uma amiga."),
    "french": (PLAIN, 'The French word "bonjour" is what you say.', "El perro no es de la casa."),
    "japanese": (
        PLAIN,
        "您的订单已经取消。",
        "The word ネジ means screw, and you need four of them.",
    ),
    "chinese": (PLAIN, "まず、板を立ててください。", "The sign 好 means good in that language."),
    "html": (PLAIN, "an HTML page", "<3 you <person>", "a < p and p > b", "<b>No</b>"),
    "russian": (PLAIN, "The word да means yes in that language.", "12 34"),
    "story": (PLAIN, "Once there was a lamp."),
    "letter": (PLAIN, "My dear customer, hello", "Dearly beloved", "Dear"),
    "dialogue": (PLAIN, "Customer: Where is it?", "The customer: he is here. The clerk: too."),
    "recipe": (PLAIN, "Ingredients: love", "- a box\n- tape", "- a box\nare the ingredients"),
    "emoji": (PLAIN, ":-)", "5 € ™"),
    "python": (PLAIN, "We import lamps.", "```\nx = 1\n```", "please print (this)"),
    "json": (PLAIN, '{"street": "x"}', "{street: x, town: y}", '"a": 1, "b": 2'),
    "one_sentence": (
        PLAIN,
        "No problem.",
        "word " * 26,
        "It is\nfive years",
        "One. Two, three, four.",
    ),
}


@pytest.mark.parametrize(("kind", "text"), [(k, t) for k, ts in KEPT.items() for t in ts])
def test_kept(kind: str, text: str) -> None:
    result = check(kind, text)
    assert result.satisfied, result.explanation
    assert result.explanation.startswith("The reply had to ")


@pytest.mark.parametrize(("kind", "text"), [(k, t) for k, ts in BROKEN.items() for t in ts])
def test_broken(kind: str, text: str) -> None:
    result = check(kind, text)
    assert not result.satisfied, result.explanation
    assert result.explanation.startswith("The reply must ")
    assert "; it " in result.explanation


def test_every_kind_has_examples_of_both() -> None:
    assert set(KEPT) == set(BROKEN) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worthless_reply_keeps_no_rule(kind: str) -> None:
    for text in ("", " \n\t", "\n".join([KEPT[kind][0].splitlines()[0]] * 4)):
        assert not check(kind, text).satisfied


@pytest.mark.parametrize("kind", KINDS)
def test_no_rule_is_kept_by_an_example_of_another(kind: str) -> None:
    others = [other for other in KINDS if other != kind and check(other, KEPT[kind][0]).satisfied]
    assert set(others) <= {"one_sentence"}


def test_an_unknown_kind_is_named_with_what_is_near() -> None:
    with pytest.raises(TaskError, match=r"unknown house rule 'sotry'.*did you mean 'story'"):
        check("sotry", "text")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("Yes.\nYes.\nYes.", "only repeats one line"),
        ("We see.\n\nWe see.\n\nWe see.\n\nWe s", "only repeats one line"),
        ("1. We see.\n2. We see.\n3. WE SEE.", "only repeats one line"),
        ("I see. I see. I see. I s", "only repeats one sentence"),
        ("Yes.\nYes.", ""),
        ("Well.\nYes.\nYes.\nYes.", ""),
        ("One line that is long enough to be read.", ""),
    ],
)
def test_spoiled(text: str, fault: str) -> None:
    assert spoiled(text) == fault


TONGUES = ("spanish", "french", "japanese", "chinese", "russian")


def test_plain_is_english_without_a_mark() -> None:
    assert plain(PLAIN).satisfied
    assert plain("Thank you, that is kind of you.").satisfied, "one sentence will do"
    for kind in MARKS:
        assert kind in TONGUES or not plain(f"{PLAIN}\n{KEPT[kind][0]}").satisfied
        assert not plain(KEPT[kind][0]).satisfied, kind
    assert plain("").explanation.endswith("; it is empty.")
    assert "looks as if it had to carry an emoji" in plain(f"{PLAIN} 🙂").explanation
    assert "one_sentence" not in MARKS


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (PLAIN, "english"),
        ("Wir haben das Paket und werden es Ihnen bitte schicken.", "german"),
        ("Non è possibile, ma la lampada che ho è nella casa.", "italian"),
        ("De kat zit op het dak en wij kunnen niet naar huis.", "dutch"),
        ("Lamp lamp lamp lamp", ""),
        ("the and", ""),
        ("", ""),
        ("12 34 !!", ""),
    ],
)
def test_guess_language(text: str, language: str) -> None:
    assert guess_language(text) == language
