"""Has the answer the form that the library wants for this kind of message?"""

import promptcodebook as pco

FRENCH = set("le la les des est vous nous pour dans une que avec sur votre pas".split())


def french(text: str) -> bool:
    words = text.lower().split()
    return sum(word in FRENCH for word in words) >= 0.15 * len(words) > 0


FORMS = {
    "json": ("a JSON object", lambda text: "{" in text and text.count('"') >= 4),
    "story": (
        'a story that begins "Once upon a time"',
        lambda text: "once upon a time" in text.lower(),
    ),
    "letter": ('a letter to "Dear reader"', lambda text: "dear reader" in text.lower()),
    "french": ("an answer in French", french),
}


def reward(example: pco.Example, output: str) -> pco.Score:
    wanted, check = FORMS[example.target]
    if check(output):
        return pco.Score(1.0, feedback=f"It is {wanted}, as it should be.")
    return pco.Score(0.0, feedback=f"It should be {wanted}.")
