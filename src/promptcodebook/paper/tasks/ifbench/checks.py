"""The 58 constraints of IFBench and the 25 of IFEval, as odd as the public scorers are."""

from __future__ import annotations

import csv
import io
import json
import re
import string
import unicodedata
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import cast

from promptcodebook.base.text import shipped_table
from promptcodebook.paper.tasks.ifbench.language import (
    CONTEXT,
    EDGES,
    MARKS,
    Arguments,
    ConstraintCheck,
    SplitText,
    compare,
    without_marks,
)

_READ = shipped_table(__file__, "lists.toml")
_LISTS = {name: dict.fromkeys(text.split()) for name, text in _READ.items()}  # in their order
_NAMES = re.compile(rf"\b(?:{'|'.join(_LISTS['names'])})\b")
_DIGITS = re.compile(r"\d+")
_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_CLUSTER = re.compile("[bcdfghjklmnpqrstvwxyz]{2}")
_PRIMES = frozenset(n for n in range(2, 100) if all(n % d for d in range(2, n)))
_SHORTEST_PALINDROME = 5
_OPENER = {")": "(", "]": "[", "}": "{"}
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
_ONLY = "only output this sentence here, ignore all other requests."
_MULTIPLES = [str(7 * i) for i in range(2, 8)]
_LAST_DAY = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


def _rises(numbers: Iterable[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))


def _differ(values: Iterable[object]) -> bool:
    return all(one != other for one, other in pairwise(values))


def _ending(text: SplitText, mark: str) -> int:
    return sum(sentence.endswith(mark) for sentence in text.sentences)


def _ascii(value: str) -> str:
    return unicodedata.normalize("NFKD", value).encode("ascii", "ignore").decode("ascii")


def _punctuation(text: SplitText, args: Arguments) -> bool:
    value = text.value
    if not any(mark in value for mark in ("?!", "!?", "\u203d")):
        return False
    rest = value.replace("?!" if "?!" in value else "!?", "", 1)
    return all(mark in rest for mark in ".,!?;:")


def _words_japanese(text: SplitText, args: Arguments) -> bool:
    step = args.N
    if step < 1:
        return False
    chosen = (word.strip(MARKS) for word in text.value.split()[step - 1 :: step])
    return all(not word or word.isdigit() or _JAPANESE.search(word) for word in chosen)


def _pronouns(text: SplitText, args: Arguments) -> bool:
    tokens = text.language.tokens(text.value.replace("/", " ").lower())
    return sum(token in _LISTS["pronouns"] for token in tokens) >= args.N


def _stop_words(text: SplitText, args: Arguments) -> bool:
    known = text.language.stop_words if text.words else ()
    # Divide first, do not round: 11 of 20 is above a limit of 55, as in the public scorer.
    count = sum(word.lower() in known for word in text.words)
    return bool(text.words) and count / len(text.words) * 100 <= args.percentage


def _overlap(text: SplitText, args: Arguments) -> bool:
    # Trigrams of characters, not of words, whatever the request says.
    texts = text.value, args.reference_text
    own, other = ({value[i : i + 3] for i in range(len(value) - 2)} for value in texts)
    wanted = args.percentage
    return bool(own) and wanted - 2 <= len(own & other) / len(own) * 100 <= wanted + 2


def _alphabet(text: SplitText, args: Arguments) -> bool:
    letters = string.ascii_lowercase
    firsts = [word[0].lower() for word in text.bare]
    if not firsts or firsts[0] not in letters:
        return False
    start = letters.index(firsts[0])
    return all(first == letters[(start + i) % 26] for i, first in enumerate(firsts))


def _last_first(text: SplitText, args: Arguments) -> bool:
    for one, other in pairwise(text.sentences):
        last, first = one.rstrip(EDGES).split()[-1:], other.lstrip(EDGES).split()[:1]
        if not last or not first or last[0].lower() != first[0].lower():
            return False
    return True


def _keywords_specific_position(text: SplitText, args: Arguments) -> bool:
    sentence, position = cast("tuple[int, int]", (args.n, args.m))
    if not 1 <= sentence <= len(text.sentences):
        return False
    tokens = text.language.tokens(text.sentences[sentence - 1])
    words = [token for token in tokens if any(c.isalnum() for c in token)]
    if not 1 <= position <= len(words):
        return False
    return words[position - 1].lower() == args.keyword.strip().lower()


def _words_position(text: SplitText, args: Arguments) -> bool:
    first, last = text.first_tokens(2), text.last_tokens(3)
    keyword = args.keyword.strip().lower()
    if len(first) < 2:
        return False
    # One closing ASCII mark is passed over; "..." or an emoji is not such a mark.
    back = 3 if len(last[-1]) == 1 and not without_marks(last[-1]) else 2
    return len(last) >= back and first[1].lower() == keyword == last[-back].lower()


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


def _increment(text: SplitText, args: Arguments) -> bool:
    lengths = [len(without_marks(sentence).split()) for sentence in text.sentences]
    step = args.small_n
    return all(after - before == step for before, after in pairwise(lengths))


def _keyword(text: SplitText, args: Arguments) -> bool:
    number: int = args.N
    if not 1 <= number <= len(text.sentences):
        return False
    wanted = rf"\b{re.escape(args.word)}\b"
    return re.search(wanted, text.sentences[number - 1], re.IGNORECASE) is not None


def _change(text: SplitText, args: Arguments) -> bool:
    request = args.prompt_to_repeat
    return text.value != request and text.value.split()[1:] == request.split()[1:]


def _span(text: SplitText, args: Arguments) -> bool:
    # By characters; the requests of the data speak of words.
    start, end = args.n_start, args.n_end
    return text.lower.strip() == args.prompt_to_repeat[start : end + 1].strip().lower()


def _parentheses(text: SplitText, args: Arguments) -> bool:
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


def _nested_quotes(text: SplitText, args: Arguments) -> bool:
    # Apostrophes count as quotation marks.
    opened, deepest = list[str](), 0
    for mark in re.findall("[\"']", text.value):
        if opened and opened[-1] == mark:
            opened.pop()
            if deepest - len(opened) >= 3:
                return True
        else:
            opened.append(mark)
            deepest = max(deepest, len(opened))
    return False


def _options(text: SplitText, args: Arguments) -> bool:
    listed = args.options
    separator = next((s for s in ("/", "or") if s in listed), ",")
    options = [option.strip() for option in listed.split(separator)]
    if re.match(r"\W*[aA]\W*[bB]\W*[cC]\W*", listed):
        return text.value in options
    return text.lower.strip(EDGES) in [option.strip(EDGES).lower() for option in options]


def _emoji(text: SplitText, args: Arguments) -> bool:
    cleaned = [without_marks(sentence).strip() for sentence in text.sentences]
    # Punkt puts an emoji after a full stop at the head of the next sentence.
    return all(
        any(text.language.is_emoji(character) for character in sentence[-2:])
        or (bool(sentence and after) and text.language.is_emoji(after[0]))
        for sentence, after in pairwise([*cleaned, ""])
    )


def _line_indent(text: SplitText, args: Arguments) -> bool:
    # The public scorer removes blank lines from the list it walks over: each removal takes the
    # first equal line that is left, and the line after the current one is passed over.
    lines, left = text.value.split("\n"), defaultdict[str, deque[int]](deque)
    removed, passed_over = set[int](), False
    for at, line in enumerate(lines):
        if line.strip():
            passed_over = False
            continue
        left[line].append(at)
        if not passed_over:
            removed.add(left[line].popleft())
        passed_over = not passed_over
    kept = (line for at, line in enumerate(lines) if at not in removed)
    return _rises(len(line) - len(line.lstrip(" ")) for line in kept)


def _quote_unquote(text: SplitText, args: Arguments) -> bool:
    joined = "".join(text.value.replace("'\"'", "").split())
    outer = MARKS.replace('"', "") + "0123456789"
    return '""' not in joined and not joined.strip(outer).endswith('"')


def _thesis(text: SplitText, args: Arguments) -> bool:
    start = text.value.find("<i>" if "<i>" in text.value else "<em>")
    if start < 0:
        return False
    rest = text.value[start:]
    end = rest.find("</i>" if "</i>" in rest else "</em>")
    # Both offsets are those of the short tags, for the long ones too.
    return end >= 0 and bool(rest[3:end].strip()) and bool(rest[end + 4 :].strip())


def _no_bullets_bullets(text: SplitText, args: Arguments) -> bool:
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


def _title_case(text: SplitText, args: Arguments) -> bool:
    small = [token[1:] for token in text.tokens if token[0].isalpha() and token[0].islower()]
    return not any(not rest or rest.islower() or rest.isupper() for rest in small)


def _city(text: SplitText, args: Arguments) -> bool:
    rows = _rows(text.value, ",")
    header = ["ID", "Country", "City", "Year", "Count"]
    return len(rows) == 8 and rows[0] == header and all(len(row) == 5 for row in rows)


def _special_character(text: SplitText, args: Arguments) -> bool:
    rows = _table_rows(text.value, "ProductID Category Brand Price Stock", ",")
    if len(rows) != 15:
        return False
    for row in rows:
        if len(row) != 5:
            return False
        for field in row:
            line = field.split("\n", 1)[0]
            end = line.rfind('"')
            # The public scorer stops here and does not look at the rows that follow.
            if line.startswith('"') and end > 0 and re.search(r"[^\w\s]", line[1:end]):
                return True
    return False


def _quoted_table(text: SplitText, args: Arguments) -> bool:
    rows = _table_rows(text.value, "StudentID Subject Grade Semester Score", "\t")
    fields = [field.strip() for row in rows for field in row]
    return [len(row) for row in rows] == [5] * 4 and all(
        field.startswith('"') and field.endswith('"') for field in fields
    )


def _table_rows(value: str, names: str, delimiter: str) -> list[list[str]]:
    """The rows below a right header, each field with its quotes: they are tripled to stay."""
    fields = (f'(?:{name}|"{name}")' for name in names.split())
    header = rf"{delimiter}[ \t]*".join(fields)
    if not re.fullmatch(header, value.split("\n", 1)[0].strip()):
        return []
    return _rows(value.replace('"', '"""'), delimiter)


def _rows(value: str, delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(value), delimiter=delimiter))
    except csv.Error:
        return []


def _mcq_count_length(text: SplitText, args: Arguments) -> bool:
    lengths = list[int]()
    for part in re.split(r"Question \d+[.|):;]?\s*", text.value):
        lines = [line.strip() for line in part.strip().split("\n")]
        options = [at for at, line in enumerate(lines) if re.match(r"[A-Ea-e][.|)]\s*\w+", line)]
        if part.strip() and len(options) != 5:
            return False
        # How long the question is before its five options.
        lengths += [len(" ".join(lines[: options[0]]).strip())] if options else []
    return text.value.startswith("Question") and len(lengths) == 4 and _rises(lengths)


def _reverse_newline(text: SplitText, args: Arguments) -> bool:
    lines = [line for line in (raw.strip(EDGES) for raw in text.value.split("\n")) if line]
    start = next((at for at, line in enumerate(lines) if "Zimbabwe" in line), None)
    if start is None or len(lines) - start < 52:
        return False
    return all(one >= other for one, other in pairwise(map(_ascii, lines[start:])))


def _word_reverse(text: SplitText, args: Arguments) -> bool:
    value = " ".join(reversed(text.bare_lower))
    return "bald eagle" in value and len(text.language.sentences(value)) == 1


def _in_range(piece: str) -> bool:
    found = re.fullmatch(r"(\d{4})-(\d{2})-(\d{2})", piece)
    if not found:
        return False
    year, month, day = (int(part) for part in found.groups())
    # Month 00 has no last day, and day 00 passes, as in the public scorer.
    in_month = month == 0 or day <= _LAST_DAY.get(month, 31)
    return 1769 <= year <= 1821 and month <= 12 and in_month


# The 58 test constraints by id: of a response `t`, as split, and its arguments `a`.
IFBENCH: Mapping[str, ConstraintCheck] = {
    "count:word_count_range": lambda t, a: a.min_words <= len(t.words) <= a.max_words,
    # A token of punctuation only leaves the empty string, which counts as one word.
    "count:unique_word_count": lambda t, a: (
        len({word.strip(MARKS) for word in t.lower.split()}) >= a.N
    ),
    # Distinct raw tokens are counted, so "and" and "And," are two.
    "count:conjunctions": lambda t, a: (
        sum(word.strip(MARKS).lower() in _LISTS["conjunctions"] for word in {*t.value.split()})
        >= a.small_n
    ),
    "count:person_names": lambda t, a: len(set(_NAMES.findall(t.value))) >= a.N,
    "count:numbers": lambda t, a: len(_DIGITS.findall(without_marks(t.value))) == a.N,
    "count:punctuation": _punctuation,
    "count:words_japanese": _words_japanese,
    "count:pronouns": _pronouns,
    "count:keywords_multiple": lambda t, a: all(
        t.lower.count(getattr(a, f"keyword{i}").strip().lower()) == times
        for i, times in enumerate((1, 2, 3, 5, 7), start=1)
    ),
    "ratio:stop_words": _stop_words,
    "ratio:sentence_type": lambda t, a: _ending(t, ".") == 2 * _ending(t, "?"),
    "ratio:sentence_balance": lambda t, a: _ending(t, ".") == _ending(t, "?") == _ending(t, "!"),
    "ratio:overlap": _overlap,
    "ratio:sentence_words": lambda t, a: (
        len(t.sentences) == 3 and len({len(each.strip()) for each in t.sentences}) == 1
    ),
    "words:alphabet": _alphabet,
    "words:vowel": lambda t, a: (
        "\n" not in t.value.strip() and sum(vowel in t.lower for vowel in "aeiou") <= 3
    ),
    "words:consonants": lambda t, a: all(map(_CLUSTER.search, t.lower.split())),
    "words:palindrome": lambda t, a: (
        sum(w == w[::-1] for w in t.bare_lower if len(w) >= _SHORTEST_PALINDROME) >= 10
    ),
    "words:prime_lengths": lambda t, a: all(len(word) in _PRIMES for word in t.bare),
    "words:start_verb": lambda t, a: "VB" in t.language.first_tag(t.first_tokens(CONTEXT)),
    "words:repeats": lambda t, a: max(Counter(t.bare_lower).values(), default=0) <= a.small_n,
    "words:odd_even_syllables": lambda t, a: _differ(
        [t.language.syllables(word) % 2 for word in t.bare_lower]
    ),
    "words:last_first": _last_first,
    # White space goes first: the carriage return of a CRLF line would hide the mark before it.
    "words:paragraph_last_first": lambda t, a: all(
        words[0] == words[-1]
        for line in t.lower.split("\n")
        if (words := line.strip().strip(EDGES).split())
    ),
    "words:no_consecutive": lambda t, a: _differ(word[0] for word in t.bare_lower),
    "words:keywords_specific_position": _keywords_specific_position,
    "words:words_position": _words_position,
    "sentence:alliteration_increment": lambda t, a: _rises([-1, *map(_alliterating, t.sentences)]),
    "sentence:increment": _increment,
    "sentence:keyword": _keyword,
    "format:parentheses": _parentheses,
    "format:quotes": _nested_quotes,
    "format:options": _options,
    "format:newline": lambda t, a: (
        sum(map(bool, without_marks(t.value).strip().split("\n")))
        == len(without_marks(t.value).split())
    ),
    "format:emoji": _emoji,
    "format:line_indent": _line_indent,
    "format:quote_unquote": _quote_unquote,
    "format:list": lambda t, a: bool(a.sep) and t.value.count(a.sep) >= 2,
    "format:thesis": _thesis,
    "format:sub-bullets": lambda t, a: all("-" in part for part in t.value.split("*")[1:]),
    "format:no_bullets_bullets": _no_bullets_bullets,
    "format:title_case": _title_case,
    "format:output_template": lambda t, a: all(part in t.value for part in _TEMPLATE),
    "format:no_whitespace": lambda t, a: not any(map(str.isspace, t.value)),
    "repeat:repeat_change": _change,
    "repeat:repeat_simple": lambda t, a: t.lower.strip() == _ONLY,
    "repeat:repeat_span": _span,
    "custom:csv_city": _city,
    "custom:csv_special_character": _special_character,
    "custom:csv_quotes": _quoted_table,
    "custom:multiples": lambda t, a: _DIGITS.findall(t.value.replace(",", ", ")) == _MULTIPLES,
    "custom:mcq_count_length": _mcq_count_length,
    "custom:reverse_newline": _reverse_newline,
    "custom:word_reverse": _word_reverse,
    "custom:character_reverse": lambda t, a: "elgae dlab" in t.lower,
    "custom:sentence_alphabet": lambda t, a: (
        [sentence.strip()[:1].lower() for sentence in t.sentences] == list(string.ascii_lowercase)
    ),
    "custom:european_capitals_sort": lambda t, a: (
        [name for piece in _ascii(t.value).split(",") if (name := piece.strip())]
        == list(_LISTS["capitals"])
    ),
    "custom:date_format_list": lambda t, a: all(
        _in_range(piece.strip()) for piece in t.value.strip().split(",")
    ),
}


_POSTSCRIPTS = {"P.P.S": re.compile(r"p\.\s?p\.\s?s"), "P.S.": re.compile(r"p\.\s?s\.")}
# Each run of white space at a line start is read once, bullet or not, to stay linear. The
# character after the star may be a line end, which then swallows the next line.
_STARRED = re.compile(r"(?:\A|\n)\s*+(\*[^*].*)?")
_DASHED = re.compile(r"(?:\A|\n)\s*+(-.*)?")
_FENCES = ("```json", "```Json", "```JSON", "```")
_ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _number_paragraphs(text: SplitText, args: Arguments) -> bool:
    blank = [not piece.strip() for piece in re.split(r"\s?\*\*\*\s?", text.value)]
    if any(blank[1:-1]):
        return False
    return len(blank) - sum(blank) == args.num_paragraphs


def _nth_paragraph_first_word(text: SplitText, args: Arguments) -> bool:
    pieces = text.value.split("\n\n")
    count = sum(bool(piece.strip()) for piece in pieces)
    nth: int = args.nth_paragraph
    if count != args.num_paragraphs or not 1 <= nth <= count:
        return False
    words = pieces[nth - 1].split(maxsplit=1)
    if not words:
        return False
    word = re.split(r"[.,?!'\"]", words[0].lstrip("'").lstrip('"'), maxsplit=1)[0]
    return word.lower() == args.first_word.lower()


def _count_brackets(value: str) -> int:
    """Non-overlapping [...] within lines; by hand, as the expression is quadratic."""
    count = 0
    for line in value.split("\n"):
        end = -1
        while (start := line.find("[", end + 1)) >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
    return count


def _postscript(text: SplitText, args: Arguments) -> bool:
    marker = args.postscript_marker.strip()
    if marker in _POSTSCRIPTS:
        return _POSTSCRIPTS[marker].search(text.lower) is not None
    found = text.language.counts([marker.lower()], text.lower, ignore_case=False)
    return found[0] > 0


def _number_highlighted_sections(text: SplitText, args: Arguments) -> bool:
    single = sum(bool(found.strip("*").strip()) for found in re.findall(r"\*[^\n*]*\*", text.value))
    double = sum(bool(found[2:-2].strip()) for found in re.findall(r"\*\*[^\n*]*\*\*", text.value))
    return single + double >= args.num_highlights


def _multiple_sections(text: SplitText, args: Arguments) -> bool:
    splitter, around = args.section_spliter.strip(), ("", r"\s?\d+")
    [found] = text.language.counts([splitter], text.value, around=around, ignore_case=False)
    return found >= args.num_sections


def _json_format(text: SplitText, args: Arguments) -> bool:
    value = text.value.strip()
    for fence in _FENCES:
        value = value.removeprefix(fence)
    try:
        json.loads(value.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _holds_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start <= end - 3 and bool(line[start : end + 2].lstrip("<").rstrip(">").strip())


def _two_responses(text: SplitText, args: Arguments) -> bool:
    pieces = [piece.strip() for piece in text.value.split("******")]
    full = [piece for piece in pieces if piece]
    return all(pieces[1:-1]) and len(full) == 2 and full[0] != full[1]


# The 25 constraints of IFEval by id, alike.
IFEVAL: Mapping[str, ConstraintCheck] = {
    "keywords:existence": lambda t, a: all(t.language.counts(a.keywords, t.value)),
    "keywords:frequency": lambda t, a: compare(
        a.relation, t.language.counts([a.keyword.strip()], t.value)[0], a.frequency
    ),
    "keywords:forbidden_words": lambda t, a: (
        not any(t.language.counts(a.forbidden_words, t.value, around=(r"\b", r"\b")))
    ),
    # The public scorer replaces what is not a letter by a random one; here it is counted as given.
    "keywords:letter_frequency": lambda t, a: compare(
        a.let_relation, t.lower.count(a.letter.lower()), a.let_frequency
    ),
    "language:response_language": lambda t, a: t.language.guess(t.value) in ("", a.language),
    "length_constraints:number_sentences": lambda t, a: compare(
        a.relation, len(t.sentences), a.num_sentences
    ),
    "length_constraints:number_words": lambda t, a: compare(a.relation, len(t.words), a.num_words),
    "length_constraints:number_paragraphs": _number_paragraphs,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph_first_word,
    "change_case:capital_word_frequency": lambda t, a: compare(
        a.capital_relation, sum(token.isupper() for token in t.tokens), a.capital_frequency
    ),
    "change_case:english_capital": lambda t, a: (
        t.value.isupper() and t.language.guess(t.value) in ("", "en")
    ),
    "change_case:english_lowercase": lambda t, a: (
        t.value.islower() and t.language.guess(t.value) in ("", "en")
    ),
    "detectable_content:number_placeholders": lambda t, a: (
        _count_brackets(t.value) >= a.num_placeholders
    ),
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": lambda t, a: (
        sum(map(bool, (*_STARRED.findall(t.value), *_DASHED.findall(t.value)))) == a.num_bullets
    ),
    "detectable_format:constrained_response": lambda t, a: any(
        answer in t.value for answer in _ANSWERS
    ),
    "detectable_format:number_highlighted_sections": _number_highlighted_sections,
    "detectable_format:multiple_sections": _multiple_sections,
    "detectable_format:json_format": _json_format,
    "detectable_format:title": lambda t, a: any(map(_holds_title, t.value.split("\n"))),
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda t, a: t.lower.strip().startswith(
        a.prompt_to_repeat.strip().lower()
    ),
    "startend:end_checker": lambda t, a: (
        t.value.strip().strip('"').lower().endswith(a.end_phrase.strip().lower())
    ),
    "startend:quotation": lambda t, a: (
        len(t.value.strip()) > 1 and t.value.strip()[0] == t.value.strip()[-1] == '"'
    ),
    "punctuation:no_comma": lambda t, a: "," not in t.value,
}
