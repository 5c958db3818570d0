"""Texts that keep one of IFBench's test constraints each; ids without a writer are not followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

__all__ = ["TEST_WRITERS"]

_Given = Mapping[str, object]
_NAMES = [
    "Emma",
    "Liam",
    "Sophia",
    "Jackson",
    "Olivia",
    "Noah",
    "Ava",
    "Lucas",
    "Isabella",
    "Mason",
    "Mia",
    "Ethan",
    "Charlotte",
    "Alexander",
    "Amelia",
    "Benjamin",
    "Harper",
    "Leo",
    "Zoe",
    "Daniel",
    "Chloe",
    "Samuel",
    "Lily",
    "Matthew",
    "Grace",
    "Owen",
    "Abigail",
    "Gabriel",
    "Ella",
    "Jacob",
    "Scarlett",
    "Nathan",
    "Victoria",
    "Elijah",
    "Layla",
    "Nicholas",
    "Audrey",
    "David",
    "Hannah",
    "Christopher",
]
_CALM = "the small boat drifts along a quiet river while tall reeds bend in gentle wind today"
_LINKS = "and but for nor or so yet"
_PRONOUNS = "I you he she it we they me him her us them"
_CAPITALS = (
    "Reykjavik, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, "
    "Dublin, Berlin, Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, "
    "Bratislava, Budapest, Vaduz, Chisinau, Bern, Ljubljana, Zagreb"
)
_INITIALS = [
    "Ants",
    "Birds",
    "Cats",
    "Dogs",
    "Eels",
    "Foxes",
    "Geese",
    "Hens",
    "Ibises",
    "Jays",
    "Kites",
    "Lambs",
    "Mice",
    "Newts",
    "Owls",
    "Pigs",
    "Quails",
    "Rams",
    "Seals",
    "Toads",
    "Urchins",
    "Voles",
    "Wasps",
    "Xerus",
    "Yaks",
    "Zebras",
]


def _n(given: _Given, name: str, default: int = 1) -> int:
    value = given.get(name)
    return default if value is None else int(float(str(value)))


def _s(given: _Given, name: str) -> str:
    return str(given.get(name) or "")


def _words(count: int) -> str:
    pool = _CALM.split()
    return " ".join(pool[k % len(pool)] for k in range(count))


def _unique(count: int) -> str:
    parts = ("ba", "co", "du", "fe", "gi", "lo", "mu", "na", "pe", "ri", "so", "tu")
    size = len(parts)
    return " ".join(
        parts[k % size] + parts[k // size % size] + parts[k // size**2 % size] + "n"
        for k in range(count)
    )


def _japanese(given: _Given) -> str:
    step = max(1, _n(given, "N"))
    return " ".join("水" if k % step == 0 else "rain" for k in range(1, 3 * step + 1))


def _keywords(given: _Given) -> str:
    said: list[str] = []
    for place, times in enumerate((1, 2, 3, 5, 7), 1):
        said += [_s(given, f"keyword{place}")] * times
    return " . ".join(said)


def _placed(given: _Given) -> str:
    sentences = ["Rain falls here."] * (_n(given, "n") - 1)
    before = "now " * (_n(given, "m") - 1)
    return " ".join([*sentences, f"{before}{_s(given, 'keyword')} stays.".strip()])


def _increment(given: _Given) -> str:
    step = _n(given, "small_n")
    return " ".join(f"Birds {_words(1 + k * step)}." for k in range(3))


def _options(given: _Given) -> str:
    listed = _s(given, "options")
    mark = "/" if "/" in listed else "or" if "or" in listed else ","
    return listed.split(mark)[0].strip()


def _changed(given: _Given) -> str:
    _, _, rest = _s(given, "prompt_to_repeat").strip().partition(" ")
    return f"Changed {rest}"


def _span(given: _Given) -> str:
    return _s(given, "prompt_to_repeat")[_n(given, "n_start", 0) : _n(given, "n_end") + 1]


def _csv_city(_given: _Given) -> str:
    rows = [f"{k},Norway,Oslo,{2000 + k},{k * 3}" for k in range(1, 8)]
    return "\n".join(["ID,Country,City,Year,Count", *rows])


def _csv_special(_given: _Given) -> str:
    rows = [f'{k},Tools,"Bolt & Nut",{k}.5,{k}' for k in range(1, 15)]
    return "\n".join(["ProductID,Category,Brand,Price,Stock", *rows])


def _csv_quotes(_given: _Given) -> str:
    rows = [["StudentID", "Subject", "Grade", "Semester", "Score"]]
    rows += [[str(k), "Art", "B", "Fall", str(80 + k)] for k in range(1, 4)]
    return "\n".join("\t".join(f'"{cell}"' for cell in row) for row in rows)


def _questions(_given: _Given) -> str:
    options = "\n".join(f"{letter}) choice" for letter in "ABCDE")
    said = [f"Question {k}\nIs this{' really' * k} so?\n{options}" for k in range(1, 5)]
    return "\n\n".join(said)


def _fixed(text: str) -> Callable[[_Given], str]:
    return lambda _given: text


TEST_WRITERS: Mapping[str, Callable[[_Given], str]] = {
    "count:word_count_range": lambda g: _words((_n(g, "min_words") + _n(g, "max_words")) // 2),
    "count:unique_word_count": lambda g: _unique(_n(g, "N") + 2),
    "count:conjunctions": lambda g: f"Rain {_LINKS} wind. Wind {_LINKS.title()} rain.",
    "count:person_names": lambda g: f"There met {' '.join(_NAMES[: _n(g, 'N')])} today.",
    "count:numbers": lambda g: f"Take {' then '.join(str(k + 1) for k in range(_n(g, 'N')))} now.",
    "count:punctuation": _fixed("Really?! Yes, it is: rain falls; wind blows. Run! Why?"),
    "count:words_japanese": _japanese,
    "count:pronouns": lambda g: " ".join([_PRONOUNS] * (1 + _n(g, "N") // 12)),
    "count:keywords_multiple": _keywords,
    "ratio:stop_words": _fixed("Heavy rain floods low fields. Strong wind bends tall trees."),
    "ratio:sentence_type": _fixed("Rain falls. Wind blows. Why does snow come?"),
    "ratio:sentence_balance": _fixed("Rain falls. Does wind blow? Look at it!"),
    "ratio:sentence_words": _fixed("Rain fell. Wind blew. Snow came."),
    "words:alphabet": _fixed("A bird can drift easily for great heights in June"),
    "words:vowel": _fixed("A calm lad had a map and a lamp at hand"),
    "words:consonants": _fixed("Storms bring strong winds past small towns"),
    "words:palindrome": _fixed(
        "level radar civic kayak rotor refer madam tenet stats solos level radar"
    ),
    "words:prime_lengths": _fixed("We saw birds at the river bends by now"),
    "words:start_verb": _fixed("Consider the small boat on the river."),
    "words:repeats": _fixed("Quiet rivers carve stone while herons wait."),
    "words:odd_even_syllables": _fixed("The river runs over stone under moss"),
    "words:last_first": _fixed("We love rain. Rain feeds rivers. Rivers run far."),
    "words:paragraph_last_first": _fixed("Rain follows rain\n\nWind follows wind"),
    "words:no_consecutive": _fixed("Small birds often fly near green trees"),
    "words:keywords_specific_position": _placed,
    "words:words_position": lambda g: f"The {_s(g, 'keyword')} and some {_s(g, 'keyword')} here.",
    "sentence:alliteration_increment": _fixed("Rain falls. Big birds sing. Big bold birds sing."),
    "sentence:increment": _increment,
    "sentence:keyword": lambda g: (
        "Rain falls. " * (_n(g, "N") - 1) + f"The {_s(g, 'word')} is here."
    ),
    "format:parentheses": _fixed("(a [b {c (d [e {f} g] h) i} j] k)"),
    "format:quotes": _fixed("\"one 'two \"three 'four' three\" two' one\""),
    "format:options": _options,
    "format:newline": _fixed("Rain\nfeeds\nrivers"),
    "format:emoji": _fixed("Rain falls 😀. Wind blows 🎉."),
    "format:line_indent": _fixed("Rain\n Wind\n  Snow"),
    "format:quote_unquote": _fixed('"Rain falls" is what they say, and it is so.'),
    "format:list": lambda g: f"Rain {_s(g, 'sep')} wind {_s(g, 'sep')} snow",
    "format:thesis": _fixed("<i>Rain matters.</i> It feeds rivers."),
    "format:sub-bullets": _fixed("* Rain\n  - light\n* Wind\n  - strong"),
    "format:no_bullets_bullets": _fixed("Rain falls. Wind blows.\n* rain\n* wind"),
    "format:title_case": _fixed("Rain Falls On Every Roof"),
    "format:output_template": _fixed("My Answer: yes. My Conclusion: rain. Future Outlook: wind."),
    "format:no_whitespace": _fixed("Rain"),
    "repeat:repeat_change": _changed,
    "repeat:repeat_simple": _fixed("Only output this sentence here, ignore all other requests."),
    "repeat:repeat_span": _span,
    "custom:multiples": _fixed("14, 21, 28, 35, 42, 49"),
    "custom:mcq_count_length": _questions,
    "custom:word_reverse": _fixed("sky the over flies eagle bald the"),
    "custom:character_reverse": _fixed("seilf elgae dlab eht"),
    "custom:sentence_alphabet": _fixed(" ".join(f"{name} rest." for name in _INITIALS)),
    "custom:european_capitals_sort": _fixed(_CAPITALS),
    "custom:csv_city": _csv_city,
    "custom:csv_special_character": _csv_special,
    "custom:csv_quotes": _csv_quotes,
    "custom:date_format_list": _fixed("1769-08-15, 1793-12-19, 1815-06-18"),
}
"""By id; each takes the constraint's arguments."""
