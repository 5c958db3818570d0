"""IFBench, groups `words` (their letters, lengths and neighbours), `sentence` and `repeat`."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from promptcodebook.tasks.ifbench.instruction import EDGES, Arguments, Check, Text, without_marks
from promptcodebook.tasks.ifbench.language import CONTEXT

_CLUSTER = re.compile("[bcdfghjklmnpqrstvwxyz]{2}")
_PRIMES = frozenset(n for n in range(2, 100) if all(n % d for d in range(2, n)))
_SHORTEST_PALINDROME = 5


def _alphabet(text: Text, args: Arguments) -> bool:
    firsts = [word[0].lower() for word in text.bare]
    if not firsts or firsts[0] not in string.ascii_lowercase:
        return False
    start = string.ascii_lowercase.index(firsts[0])
    return all(first == string.ascii_lowercase[(start + i) % 26] for i, first in enumerate(firsts))


def _vowel(text: Text, args: Arguments) -> bool:
    if "\n" in text.value.strip():
        return False
    return sum(vowel in text.lower for vowel in "aeiou") <= 3


def _consonants(text: Text, args: Arguments) -> bool:
    return all(_CLUSTER.search(word) for word in text.lower.split())


def _palindrome(text: Text, args: Arguments) -> bool:
    long = (word for word in text.bare_lower if len(word) >= _SHORTEST_PALINDROME)
    return sum(word == word[::-1] for word in long) >= 10


def _prime_lengths(text: Text, args: Arguments) -> bool:
    return all(len(word) in _PRIMES for word in text.bare)


def _start_verb(text: Text, args: Arguments) -> bool:
    return "VB" in text.language.first_tag(text.first_tokens(CONTEXT))


def _repeats(text: Text, args: Arguments) -> bool:
    counts = Counter(text.bare_lower)
    return max(counts.values(), default=0) <= args.integer("small_n")


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


def _no_consecutive(text: Text, args: Arguments) -> bool:
    return all(one[0] != other[0] for one, other in pairwise(text.bare_lower))


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


WORDS: Mapping[str, Check] = {
    "words:alphabet": _alphabet,
    "words:vowel": _vowel,
    "words:consonants": _consonants,
    "words:palindrome": _palindrome,
    "words:prime_lengths": _prime_lengths,
    "words:start_verb": _start_verb,
    "words:repeats": _repeats,
    "words:odd_even_syllables": _odd_even_syllables,
    "words:last_first": _last_first,
    "words:paragraph_last_first": _paragraph_last_first,
    "words:no_consecutive": _no_consecutive,
    "words:keywords_specific_position": _keywords_specific_position,
    "words:words_position": _words_position,
}


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


SENTENCE: Mapping[str, Check] = {
    "sentence:alliteration_increment": _alliteration_increment,
    "sentence:increment": _increment,
    "sentence:keyword": _keyword,
}


def _change(text: Text, args: Arguments) -> bool:
    request = args.text("prompt_to_repeat")
    return text.value != request and text.value.split()[1:] == request.split()[1:]


def _simple(text: Text, args: Arguments) -> bool:
    return text.lower.strip() == "only output this sentence here, ignore all other requests."


def _span(text: Text, args: Arguments) -> bool:
    # By characters; the requests of the data speak of words.
    start, end = args.integer("n_start"), args.integer("n_end")
    return text.lower.strip() == args.text("prompt_to_repeat")[start : end + 1].strip().lower()


REPEAT: Mapping[str, Check] = {
    "repeat:repeat_change": _change,
    "repeat:repeat_simple": _simple,
    "repeat:repeat_span": _span,
}
