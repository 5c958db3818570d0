"""The 58 constraints of IFBench, a table of pure functions; where the public scorer is odd, so is
this. lists.toml has the word lists."""

from __future__ import annotations

import csv
import io
import re
import string
import tomllib
import unicodedata
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from promptcodebook.tasks.ifbench.instruction import (
    EDGES,
    MARKS,
    Arguments,
    Check,
    Text,
    without_marks,
)
from promptcodebook.tasks.ifbench.language import CONTEXT

_LISTS = {
    name: tuple(words.split())
    for name, words in tomllib.loads(
        Path(__file__).with_name("lists.toml").read_text("utf-8")
    ).items()
}
_NAMES = re.compile(rf"\b(?:{'|'.join(_LISTS['names'])})\b")
_DIGITS = re.compile(r"\d+")
_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


def _conjunctions(text: Text, args: Arguments) -> bool:
    # Distinct raw tokens are counted, so "and" and "And," are two.
    known = _LISTS["conjunctions"]
    found = {word for word in text.value.split() if word.strip(MARKS).lower() in known}
    return len(found) >= args.integer("small_n")


def _punctuation(text: Text, args: Arguments) -> bool:
    value = text.value
    if not any(mark in value for mark in ("?!", "!?", "\u203d")):
        return False
    rest = value.replace("?!" if "?!" in value else "!?", "", 1)
    return all(mark in rest for mark in ".,!?;:")


def _words_japanese(text: Text, args: Arguments) -> bool:
    step = args.integer("N")
    if step < 1:
        return False
    chosen = (word.strip(MARKS) for word in text.value.split()[step - 1 :: step])
    return all(not word or word.isdigit() or _JAPANESE.search(word) for word in chosen)


def _pronouns(text: Text, args: Arguments) -> bool:
    tokens = text.language.tokens(text.value.replace("/", " ").lower())
    return sum(token in _LISTS["pronouns"] for token in tokens) >= args.integer("N")


def _keywords_multiple(text: Text, args: Arguments) -> bool:
    wanted = enumerate((1, 2, 3, 5, 7), start=1)
    return all(
        text.lower.count(args.text(f"keyword{i}").strip().lower()) == times for i, times in wanted
    )


def _stop_words(text: Text, args: Arguments) -> bool:
    words = text.words
    if not words:
        return False
    known = text.language.stop_words
    # Divide first, do not round: 11 of 20 is above a limit of 55, as in the public scorer.
    share = sum(word.lower() in known for word in words) / len(words) * 100
    return share <= args.number("percentage")


def _overlap(text: Text, args: Arguments) -> bool:
    # Trigrams of characters, not of words, whatever the request says.
    own, other = _trigrams(text.value), _trigrams(args.text("reference_text"))
    if not own:
        return False
    share = len(own & other) / len(own) * 100
    wanted = args.number("percentage")
    return wanted - 2 <= share <= wanted + 2


def _trigrams(value: str) -> set[str]:
    return {value[i : i + 3] for i in range(len(value) - 2)}


def _sentence_words(text: Text, args: Arguments) -> bool:
    lengths = [len(sentence.strip()) for sentence in text.sentences]
    return len(lengths) == 3 and len(set(lengths)) == 1


def _ending(text: Text, mark: str) -> int:
    return sum(sentence.endswith(mark) for sentence in text.sentences)


_CLUSTER = re.compile("[bcdfghjklmnpqrstvwxyz]{2}")
_PRIMES = frozenset(n for n in range(2, 100) if all(n % d for d in range(2, n)))
_SHORTEST_PALINDROME = 5


def _alphabet(text: Text, args: Arguments) -> bool:
    letters = string.ascii_lowercase
    firsts = [word[0].lower() for word in text.bare]
    if not firsts or firsts[0] not in letters:
        return False
    start = letters.index(firsts[0])
    return all(first == letters[(start + i) % 26] for i, first in enumerate(firsts))


def _palindrome(text: Text, args: Arguments) -> bool:
    long = (word for word in text.bare_lower if len(word) >= _SHORTEST_PALINDROME)
    return sum(word == word[::-1] for word in long) >= 10


def _odd_even_syllables(text: Text, args: Arguments) -> bool:
    parities = [text.language.syllables(word) % 2 for word in text.bare_lower]
    return all(one != other for one, other in pairwise(parities))


def _last_first(text: Text, args: Arguments) -> bool:
    for one, other in pairwise(text.sentences):
        last, first = one.rstrip(EDGES).split()[-1:], other.lstrip(EDGES).split()[:1]
        if not last or not first or last[0].lower() != first[0].lower():
            return False
    return True


def _paragraph_last_first(text: Text, args: Arguments) -> bool:
    # White space goes first: the carriage return of a CRLF line would hide the mark before it.
    lines = (line.strip().strip(EDGES).split() for line in text.lower.split("\n"))
    return all(words[0] == words[-1] for words in lines if words)


def _keywords_specific_position(text: Text, args: Arguments) -> bool:
    sentence, position = args.integer("n"), args.integer("m")
    if not 1 <= sentence <= len(text.sentences):
        return False
    tokens = text.language.tokens(text.sentences[sentence - 1])
    words = [token for token in tokens if any(c.isalnum() for c in token)]
    if not 1 <= position <= len(words):
        return False
    return words[position - 1].lower() == args.text("keyword").strip().lower()


def _words_position(text: Text, args: Arguments) -> bool:
    first, last = text.first_tokens(2), text.last_tokens(3)
    keyword = args.text("keyword").strip().lower()
    if len(first) < 2:
        return False
    # One closing ASCII mark is passed over; "..." or an emoji is not such a mark.
    back = 3 if len(last[-1]) == 1 and not without_marks(last[-1]) else 2
    return len(last) >= back and first[1].lower() == keyword == last[-back].lower()


def _alliteration_increment(text: Text, args: Arguments) -> bool:
    totals = [-1, *(_alliterating(sentence) for sentence in text.sentences)]
    return all(before < after for before, after in pairwise(totals))


def _alliterating(sentence: str) -> int:
    """Words in runs that share their first character, all runs of the sentence together."""
    words = [word for word in (raw.lstrip(EDGES) for raw in sentence.lower().split()) if word]
    total, running = 0, False
    for one, other in pairwise(words):
        same = one[0] == other[0]
        if same:
            total += 1 if running else 2
        running = same
    return total


def _increment(text: Text, args: Arguments) -> bool:
    lengths = [len(without_marks(sentence).split()) for sentence in text.sentences]
    step = args.integer("small_n")
    return all(after - before == step for before, after in pairwise(lengths))


def _keyword(text: Text, args: Arguments) -> bool:
    number = args.integer("N")
    if not 1 <= number <= len(text.sentences):
        return False
    wanted = rf"\b{re.escape(args.text('word'))}\b"
    return re.search(wanted, text.sentences[number - 1], re.IGNORECASE) is not None


def _change(text: Text, args: Arguments) -> bool:
    request = args.text("prompt_to_repeat")
    return text.value != request and text.value.split()[1:] == request.split()[1:]


def _span(text: Text, args: Arguments) -> bool:
    # By characters; the requests of the data speak of words.
    start, end = args.integer("n_start"), args.integer("n_end")
    return text.lower.strip() == args.text("prompt_to_repeat")[start : end + 1].strip().lower()


_OPENER = {")": "(", "]": "[", "}": "{"}
_LETTERED = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")


def _parentheses(text: Text, args: Arguments) -> bool:
    opened, deepest = list[str](), 0
    for mark in text.value:
        if mark in "([{":
            opened.append(mark)
            deepest = max(deepest, len(opened))
        elif mark in _OPENER:
            if opened and opened[-1] == _OPENER[mark]:
                opened.pop()
                if deepest >= 5:
                    return True
            else:
                opened, deepest = [], 0
    return False


def _nested_quotes(text: Text, args: Arguments) -> bool:
    # Apostrophes count as quotation marks.
    opened, deepest = list[str](), 0
    for mark in text.value:
        if mark not in "\"'":
            continue
        if opened and opened[-1] == mark:
            opened.pop()
            if deepest - len(opened) >= 3:
                return True
        else:
            opened.append(mark)
            deepest = max(deepest, len(opened))
    return False


def _options(text: Text, args: Arguments) -> bool:
    listed = args.text("options")
    separator = next((s for s in ("/", "or") if s in listed), ",")
    options = [option.strip() for option in listed.split(separator)]
    if _LETTERED.match(listed):
        return text.value in options
    return text.lower.strip(EDGES) in [option.strip(EDGES).lower() for option in options]


def _newline(text: Text, args: Arguments) -> bool:
    bare = without_marks(text.value).strip()
    return sum(bool(line) for line in bare.split("\n")) == len(bare.split())


def _emoji(text: Text, args: Arguments) -> bool:
    cleaned = [without_marks(sentence).strip() for sentence in text.sentences]
    # Punkt puts an emoji after a full stop at the head of the next sentence.
    return all(
        any(text.language.is_emoji(character) for character in sentence[-2:])
        or (bool(sentence and after) and text.language.is_emoji(after[0]))
        for sentence, after in pairwise([*cleaned, ""])
    )


def _line_indent(text: Text, args: Arguments) -> bool:
    depths = [len(line) - len(line.lstrip(" ")) for line in _nonblank_lines(text.value.split("\n"))]
    return all(before < after for before, after in pairwise(depths))


def _nonblank_lines(lines: list[str]) -> list[str]:
    """The lines after the public scorer's removal of blank ones.

    It removes from the list it walks over: each removal takes the first equal line that is left,
    and the line after the current one is passed over.
    """
    left = defaultdict[str, deque[int]](deque)
    removed, passed_over = set[int](), False
    for at, line in enumerate(lines):
        if line.strip():
            passed_over = False
            continue
        left[line].append(at)
        if not passed_over:
            removed.add(left[line].popleft())
        passed_over = not passed_over
    return [line for at, line in enumerate(lines) if at not in removed]


def _quote_unquote(text: Text, args: Arguments) -> bool:
    joined = "".join(text.value.replace("'\"'", "").split())
    outer = MARKS.replace('"', "") + "0123456789"
    return '""' not in joined and not joined.strip(outer).endswith('"')


def _list(text: Text, args: Arguments) -> bool:
    separator = args.text("sep")
    return bool(separator) and text.value.count(separator) >= 2


def _thesis(text: Text, args: Arguments) -> bool:
    start = _first_of(text.value, "<i>", "<em>")
    if start < 0:
        return False
    rest = text.value[start:]
    end = _first_of(rest, "</i>", "</em>")
    # Both offsets are those of the short tags, for the long ones too.
    return end >= 0 and bool(rest[3:end].strip()) and bool(rest[end + 4 :].strip())


def _first_of(value: str, preferred: str, other: str) -> int:
    at = value.find(preferred)
    return at if at >= 0 else value.find(other)


def _no_bullets_bullets(text: Text, args: Arguments) -> bool:
    sentences, bullets, prose = 0, 0, True
    for line in text.value.split("\n"):
        if line.strip().startswith("*"):
            if bullets == 0 and sentences < 2:
                return False
            bullets += 1
            prose = False
        elif not prose:
            return False
        else:
            found = len(text.language.sentences(line.strip()))
            # A blank line, having no sentence, counts as the end of the prose.
            sentences, prose = sentences + found, found > 0
    return bullets >= 2


def _title_case(text: Text, args: Arguments) -> bool:
    return not any(_lacks_capital(token) for token in text.tokens if token[0].isalpha())


def _lacks_capital(token: str) -> bool:
    rest = token[1:]
    return token[0].islower() and (not rest or rest.islower() or rest.isupper())


_CITY_HEADER = ["ID", "Country", "City", "Year", "Count"]
_SPECIAL = re.compile(r"[^\w\s]")


def _header(names: str, separator: str) -> re.Pattern[str]:
    fields = (f'(?:{name}|"{name}")' for name in names.split())
    return re.compile(rf"{separator}[ \t]*".join(fields))


_PRODUCTS = _header("ProductID Category Brand Price Stock", ",")
_STUDENTS = _header("StudentID Subject Grade Semester Score", "\t")


def _city(text: Text, args: Arguments) -> bool:
    rows = _rows(text.value, ",")
    return len(rows) == 8 and rows[0] == _CITY_HEADER and all(len(row) == 5 for row in rows)


def _special_character(text: Text, args: Arguments) -> bool:
    rows = _table_rows(text.value, _PRODUCTS, ",")
    if len(rows) != 15:
        return False
    for row in rows:
        if len(row) != 5:
            return False
        # The public scorer stops here and does not look at the rows that follow.
        if any(_holds_special(field) for field in row):
            return True
    return False


def _holds_special(field: str) -> bool:
    line = field.split("\n", 1)[0]
    end = line.rfind('"')
    return line.startswith('"') and end > 0 and _SPECIAL.search(line[1:end]) is not None


def _quoted_table(text: Text, args: Arguments) -> bool:
    rows = _table_rows(text.value, _STUDENTS, "\t")
    fields = [field.strip() for row in rows for field in row]
    return [len(row) for row in rows] == [5] * 4 and all(
        field.startswith('"') and field.endswith('"') for field in fields
    )


def _table_rows(value: str, header: re.Pattern[str], delimiter: str) -> list[list[str]]:
    """The rows below a right header, each field with its quotes: they are tripled to stay."""
    if not header.fullmatch(value.split("\n", 1)[0].strip()):
        return []
    return _rows(value.replace('"', '"""'), delimiter)


def _rows(value: str, delimiter: str) -> list[list[str]]:
    """The rows, a blank line being one; none where the public scorer cannot read them."""
    try:
        return list(csv.reader(io.StringIO(value), delimiter=delimiter))
    except csv.Error:
        return []


_QUESTION = re.compile(r"Question \d+[.|):;]?\s*")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w+")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_MULTIPLES = [str(7 * i) for i in range(2, 8)]
_LAST_DAY = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


def _mcq_count_length(text: Text, args: Arguments) -> bool:
    if not text.value.startswith("Question"):
        return False
    parts = [part.strip() for part in _QUESTION.split(text.value)]
    lengths = [_question_length(part) for part in parts if part]
    known = [length for length in lengths if length is not None]
    rising = all(before < after for before, after in pairwise(known))
    return len(lengths) == len(known) == 4 and rising


def _question_length(part: str) -> int | None:
    """Characters of the question before its five options; None when there are not five."""
    lines = [line.strip() for line in part.split("\n")]
    options = [at for at, line in enumerate(lines) if _OPTION.match(line)]
    return len(" ".join(lines[: options[0]]).strip()) if len(options) == 5 else None


def _reverse_newline(text: Text, args: Arguments) -> bool:
    lines = [line for line in (raw.strip(EDGES) for raw in text.value.split("\n")) if line]
    start = next((at for at, line in enumerate(lines) if "Zimbabwe" in line), None)
    if start is None or len(lines) - start < 52:
        return False
    names = [_ascii(line) for line in lines[start:]]
    return all(one >= other for one, other in pairwise(names))


def _word_reverse(text: Text, args: Arguments) -> bool:
    value = " ".join(reversed(text.bare_lower))
    return "bald eagle" in value and len(text.language.sentences(value)) == 1


def _sentence_alphabet(text: Text, args: Arguments) -> bool:
    firsts = [sentence.strip()[:1].lower() for sentence in text.sentences]
    return firsts == list(string.ascii_lowercase)


def _european_capitals_sort(text: Text, args: Arguments) -> bool:
    names = (name.strip() for name in _ascii(text.value).split(","))
    return tuple(name for name in names if name) == _LISTS["capitals"]


def _in_range(piece: str) -> bool:
    found = _DATE.fullmatch(piece)
    if not found:
        return False
    year, month, day = (int(part) for part in found.groups())
    # Month 00 has no last day, and day 00 passes, as in the public scorer.
    in_month = month == 0 or day <= _LAST_DAY.get(month, 31)
    return 1769 <= year <= 1821 and month <= 12 and in_month


def _ascii(value: str) -> str:
    return unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode("ascii")


IFBENCH: Mapping[str, Check] = {
    "count:word_count_range": lambda text, args: (
        args.integer("min_words") <= len(text.words) <= args.integer("max_words")
    ),
    # A token of punctuation only leaves the empty string, which counts as one word.
    "count:unique_word_count": lambda text, args: (
        len({word.strip(MARKS) for word in text.lower.split()}) >= args.integer("N")
    ),
    "count:conjunctions": _conjunctions,
    "count:person_names": lambda text, args: (
        len(set(_NAMES.findall(text.value))) >= args.integer("N")
    ),
    "count:numbers": lambda text, args: (
        len(_DIGITS.findall(without_marks(text.value))) == args.integer("N")
    ),
    "count:punctuation": _punctuation,
    "count:words_japanese": _words_japanese,
    "count:pronouns": _pronouns,
    "count:keywords_multiple": _keywords_multiple,
    "ratio:stop_words": _stop_words,
    "ratio:sentence_type": lambda text, args: _ending(text, ".") == 2 * _ending(text, "?"),
    "ratio:sentence_balance": lambda text, args: (
        _ending(text, ".") == _ending(text, "?") == _ending(text, "!")
    ),
    "ratio:overlap": _overlap,
    "ratio:sentence_words": _sentence_words,
    "words:alphabet": _alphabet,
    "words:vowel": lambda text, args: (
        "\n" not in text.value.strip() and sum(vowel in text.lower for vowel in "aeiou") <= 3
    ),
    "words:consonants": lambda text, args: all(map(_CLUSTER.search, text.lower.split())),
    "words:palindrome": _palindrome,
    "words:prime_lengths": lambda text, args: all(len(word) in _PRIMES for word in text.bare),
    "words:start_verb": lambda text, args: (
        "VB" in text.language.first_tag(text.first_tokens(CONTEXT))
    ),
    "words:repeats": lambda text, args: (
        max(Counter(text.bare_lower).values(), default=0) <= args.integer("small_n")
    ),
    "words:odd_even_syllables": _odd_even_syllables,
    "words:last_first": _last_first,
    "words:paragraph_last_first": _paragraph_last_first,
    "words:no_consecutive": lambda text, args: all(
        one[0] != other[0] for one, other in pairwise(text.bare_lower)
    ),
    "words:keywords_specific_position": _keywords_specific_position,
    "words:words_position": _words_position,
    "sentence:alliteration_increment": _alliteration_increment,
    "sentence:increment": _increment,
    "sentence:keyword": _keyword,
    "format:parentheses": _parentheses,
    "format:quotes": _nested_quotes,
    "format:options": _options,
    "format:newline": _newline,
    "format:emoji": _emoji,
    "format:line_indent": _line_indent,
    "format:quote_unquote": _quote_unquote,
    "format:list": _list,
    "format:thesis": _thesis,
    "format:sub-bullets": lambda text, args: all("-" in part for part in text.value.split("*")[1:]),
    "format:no_bullets_bullets": _no_bullets_bullets,
    "format:title_case": _title_case,
    "format:output_template": lambda text, args: all(part in text.value for part in _TEMPLATE),
    "format:no_whitespace": lambda text, args: not any(map(str.isspace, text.value)),
    "repeat:repeat_change": _change,
    "repeat:repeat_simple": lambda text, args: (
        text.lower.strip() == "only output this sentence here, ignore all other requests."
    ),
    "repeat:repeat_span": _span,
    "custom:csv_city": _city,
    "custom:csv_special_character": _special_character,
    "custom:csv_quotes": _quoted_table,
    "custom:multiples": lambda text, args: (
        _DIGITS.findall(text.value.replace(",", ", ")) == _MULTIPLES
    ),
    "custom:mcq_count_length": _mcq_count_length,
    "custom:reverse_newline": _reverse_newline,
    "custom:word_reverse": _word_reverse,
    "custom:character_reverse": lambda text, args: "elgae dlab" in text.lower,
    "custom:sentence_alphabet": _sentence_alphabet,
    "custom:european_capitals_sort": _european_capitals_sort,
    "custom:date_format_list": lambda text, args: all(
        _in_range(piece.strip()) for piece in text.value.strip().split(",")
    ),
}
"""The 58 test constraints by id."""
