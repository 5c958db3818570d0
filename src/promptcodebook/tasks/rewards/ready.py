"""The rewards that compare an answer with its reference, and those that look at its form. A
reference that is a list of texts or numbers holds several answers: any of them is right."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, cast

from promptcodebook.base.text import answer_tokens, fold_text, parse_json, quote, strip_fence
from promptcodebook.base.units import plural
from promptcodebook.base.worker import shared_worker
from promptcodebook.errors import ConfigError, RewardError, import_extra
from promptcodebook.tasks.rewards import reading
from promptcodebook.types import Example, Score


@dataclass(frozen=True, slots=True)
class Exact:
    """The answer must equal the reference, ignoring white space at both ends."""

    def __call__(self, example: Example, output: str) -> Score:
        return best_of(example, output, self._score, whole=True)

    def _score(self, target: str, output: str) -> Score:
        target, given = target.strip(), output.strip()
        if given == target:
            return Score(1.0, "The answer equals the reference.")
        fault = f"is {quote(output)}; exactly {quote(target)} was expected"
        if given.casefold() == target.casefold():
            fault = f"differs from {quote(target)} in upper and lower case"
        elif target and target in output:
            fault = f"contains {quote(target)} but must be exactly that and nothing more"
        return Score(0.0, f"The answer {fault}.")


@dataclass(frozen=True, slots=True)
class Normalised:
    """Like `exact`, but both texts are first normalised (lower case, no punctuation or articles).
    If that leaves nothing of the reference, the texts are compared unchanged."""

    def __call__(self, example: Example, output: str) -> Score:
        return best_of(example, output, self._score, whole=True)

    def _score(self, target: str, output: str) -> Score:
        wanted, given = " ".join(answer_tokens(target)), " ".join(answer_tokens(output))
        if not wanted:
            wanted, given = target.strip(), output.strip()
        if wanted == given:
            return Score(1.0, "The answer matches the reference.")
        if wanted in given:
            return Score(0.0, f"The answer contains {quote(target)} but says more; give only that.")
        return Score(0.0, f"The answer is {quote(output)}; {quote(target)} was expected.")


@dataclass(frozen=True, slots=True)
class Contains:
    """The answer must contain the reference, or a fixed `text`, as whole words: "no" is not in
    "know", and "$18" is not in "$180"."""

    text: str | None = None
    ignore_case: bool = True

    def __call__(self, example: Example, output: str) -> Score:
        if self.text is not None:
            return self._score(self.text, output)
        return best_of(example, output, self._score)

    def _score(self, wanted: str, output: str) -> Score:
        if reading.holds_words(output, wanted, ignore_case=self.ignore_case):
            return Score(1.0, f"The answer contains {quote(wanted)}.")
        return Score(0.0, f"The answer does not contain {quote(wanted)}.")


@dataclass(frozen=True, slots=True)
class Label:
    """The answer must name exactly one label, the reference. It can give the label, as whole words,
    or the letter or number next to it. A negated label does not count as named.

    `labels` lists all labels. If the input lists options ("A) ..."), they count as labels. With
    `several`, the reference is a list of labels, or a string with , ; or | between them. The score
    is then the F1 of the named labels."""

    labels: tuple[str, ...] = ()
    several: bool = False

    def __post_init__(self) -> None:
        reading.names_of(self.labels)  # or a ConfigError

    def __call__(self, example: Example, output: str) -> Score:
        if self.several:
            return self._score_set(reading.members_of(target_of(example)), output)
        accepted = reading.accepted_answers(target_of(example))
        names = self._names(example, accepted)
        wanted, named = {names.owner(text) for text in accepted}, names.named(output)
        if len(named) == 1 and named[0][0] in wanted:
            return Score(1.0, f"The answer names {quote(named[0][1])}.")
        words = " and ".join(quote(text) for _, text in named)
        fault = f"names {len(named)} labels, {words}" if len(named) > 1 else f"names {words}"
        fault = fault if named else f"names none of the labels: {quote(output, 60)}"
        return Score(0.0, f"The answer {fault}; {quote(accepted[0])} alone was expected.")

    def _score_set(self, wanted: tuple[str, ...], output: str) -> Score:
        names = reading.names_of(tuple(dict.fromkeys((*self.labels, *wanted))))
        asked = {names.owner(text): text for text in wanted}
        named = dict(names.named(output, most=None))
        right, most = len(asked.keys() & named.keys()), len(asked) + len(named)
        value = 2 * right / most if most else 1.0
        missing = [text for owner, text in asked.items() if owner not in named]
        wrong = [text for owner, text in named.items() if owner not in asked]
        feedback = f"{right} of {plural(len(asked), 'label')} named."
        for title, texts in (("Missing", missing), ("Not in the reference", wrong)):
            feedback += f" {title}: {', '.join(map(quote, texts[:_SHOWN]))}." if texts else ""
        return Score(value, feedback)

    def _names(self, example: Example, accepted: tuple[str, ...]) -> reading.Names:
        options = reading.options_of(example.input)
        if options and reading.names_of((), options).owner(accepted[0]) < 0:
            options = ()  # a list of something else
        known = reading.names_of(self.labels, options)
        others = tuple(text for text in accepted if known.owner(text) < 0)
        return reading.names_of((*self.labels, *others), options) if others else known


@dataclass(frozen=True, slots=True)
class TokenF1:
    """The F1 score of the normalised words. Repeated words count."""

    def __call__(self, example: Example, output: str) -> Score:
        return best_of(example, output, self._score)

    def _score(self, target: str, output: str) -> Score:
        wanted, given = Counter(answer_tokens(target)), Counter(answer_tokens(output))
        common = (wanted & given).total()
        if not wanted and not given:
            return Score(1.0, "Answer and reference hold no words that count.")
        if not common:
            return Score(0.0, f"The answer shares no word with the reference {quote(target)}.")
        precision, recall = common / given.total(), common / wanted.total()
        value = 2 * precision * recall / (precision + recall)
        feedback = f"Word overlap F1 {value:.2f} (precision {precision:.2f}, recall {recall:.2f})."
        if value < 1.0:
            feedback += f" The reference is {quote(target)}."
        named = (("Missing", wanted - given), ("Not in the reference", given - wanted))
        for title, words in named:
            feedback += f" {title}: {', '.join(list(words)[:8])}." if words else ""
        return Score(value, feedback)


@dataclass(frozen=True, slots=True)
class Numeric:
    """Compares the last number in each text, or the number in a LaTeX box or after "####":
    |given - reference| <= max(`tolerance`, `relative` * |reference|). Accepted formats include
    `1,234.5`, `1.234,5`, `3/4` and `5 %`."""

    tolerance: float = 1e-6
    relative: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("tolerance", self.tolerance), ("relative", self.relative)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be 0 or more, not {value:g}", hint=f"{name} = 0.01")

    def __call__(self, example: Example, output: str) -> Score:
        return best_of(example, output, partial(self._score, example.id))

    def _score(self, row: str, target: str, output: str) -> Score:
        wanted, given = reading.last_number(target), reading.last_number(output)
        if wanted is None:
            message = f"the target {quote(target, 60)} of example {row} holds no number"
            raise RewardError(message, hint="correct the data, or use a different reward")
        if given is None:
            return Score(0.0, f"The answer holds no number; {wanted} was expected.")
        for one, other in given.pairs(wanted):
            if abs(one - other) <= max(self.tolerance, self.relative * abs(other)):
                return Score(1.0, f"The answer {given} is right.")
        return Score(0.0, f"The last number of the answer is {given}; {wanted} was expected.")


_QUANTIFIERS = frozenset("*+?{")


def matches(pattern: str, flags: int, full: bool, text: str) -> bool:
    """Whether `pattern` is found in `text`, or is all of it (`full`)."""
    return (re.fullmatch if full else re.search)(pattern, text, flags) is not None


@dataclass(frozen=True, slots=True)
class Regex:
    """The answer must contain a match of `pattern`. With `full`, the stripped answer must
    match entirely.

    `seconds` limits one match; an answer that takes longer does not match."""

    pattern: str
    full: bool = False
    ignore_case: bool = False
    seconds: float = 2.0

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern, self._flags)
        except (re.error, RecursionError, OverflowError) as error:
            raise ConfigError(
                f"the pattern {quote(self.pattern)} of the regex reward is not valid: {error}",
                hint="test it with python -c 'import re; re.compile(...)'",
            ) from None

    @property
    def _flags(self) -> int:
        return int(re.IGNORECASE) if self.ignore_case else 0

    async def __call__(self, example: Example, output: str) -> Score:
        text = output.strip() if self.full else output
        pattern = quote(self.pattern)
        if not _QUANTIFIERS & set(self.pattern):
            given = matches(self.pattern, self._flags, self.full, text)
        else:
            call, name = shared_worker().call, f"{__name__}:matches"
            asked = self.pattern, self._flags, self.full, text
            result = await asyncio.to_thread(call, name, asked, self.seconds)
            if result.error:
                raise RuntimeError(f"the regex process failed: {result.error}")
            if result.timed_out:
                late = f"gave no result on the answer within {self.seconds:g} s"
                return Score(0.0, f"The pattern {pattern} {late}; this counts as no match.")
            given = result.value is True
        whole, verb = "as a whole " * self.full, "matches" if given else "does not match"
        return Score(float(given), f"The answer {whole}{verb} the pattern {pattern}.")


@dataclass(frozen=True, slots=True)
class ValidJson:
    """The answer must be strict JSON (no NaN). `fenced` allows one code fence around it; all `keys`
    must be present."""

    fenced: bool = False
    keys: tuple[str, ...] = ()

    def __call__(self, example: Example, output: str) -> Score:
        try:
            value = parse_json(strip_fence(output) if self.fenced else output)
        except ValueError as error:
            return Score(0.0, f"The answer is not valid JSON: {error}.")
        if not self.keys:
            return Score(1.0, "The answer is valid JSON.")
        if not isinstance(value, dict):
            return Score(0.0, "The answer is valid JSON, but not an object.")
        missing = [key for key in self.keys if key not in value]
        if missing:
            return Score(0.0, f"The JSON object lacks the keys {', '.join(missing)}.")
        return Score(1.0, "The answer is a JSON object with all keys.")


_SHOWN = 5


@dataclass(frozen=True, slots=True)
class JsonFields:
    """The share of fields that match the reference, which is also JSON. Numbers may be strings;
    case and blanks in strings, and the order of plain lists, are ignored. The feedback names each
    error; `fenced` allows one code fence."""

    fenced: bool = False

    def __call__(self, example: Example, output: str) -> Score:
        try:
            wanted: Any = parse_json(target_of(example))
        except ValueError:
            message = f"the target of example {example.id} is not JSON"
            raise RewardError(message, hint="correct the data, or use a different reward") from None
        try:
            given = parse_json(strip_fence(output) if self.fenced else output)
        except ValueError as error:
            return Score(0.0, f"The answer is not valid JSON: {error}.")
        accepted: list[Any] = [wanted]
        if isinstance(wanted, list) and not isinstance(given, list):
            accepted += wanted  # several answers, any of which is right
        scores = (self._score(each, given) for each in accepted)
        return max(scores, key=lambda score: score.value)

    def _score(self, wanted: Any, given: Any) -> Score:
        asked, made = _fields(wanted), _fields(given)
        right, faults = 0.0, list[str]()
        for path in dict.fromkeys((*asked, *made)):
            expected, got = asked.get(path, ()), made.get(path, ())
            common = (Counter(map(_comparable, expected)) & Counter(map(_comparable, got))).total()
            right += (share := common / max(len(expected), len(got)))
            if share < 1:
                shown, other = (", ".join(map(str, each)) for each in (got, expected))
                fault = f"is {quote(shown, 60)}, not {quote(other, 60)}"
                fault = fault if got else f"is missing: {quote(other, 60)}"
                faults.append(f"{path or 'it'} {fault if expected else 'is not asked for'}")
        if not faults:
            return Score(1.0, "Every field of the answer is right.")
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        return Score(right / len(asked.keys() | made.keys()),
                     f"Wrong in the answer: {'; '.join(faults[:_SHOWN])}{more}.")  # fmt: skip


def _fields(tree: Any) -> dict[str, list[Any]]:
    """The values of each field; of a list of plain values all under the list's own name."""
    found = dict[str, list[Any]]()
    for path, value in reading.leaves(tree):
        found.setdefault(path, []).append(value)
    return found


def _comparable(value: object) -> object:
    text = str(value)
    number = reading.last_number(text) if re.fullmatch(r"\s*[-+]?[\d.,]+\s*", text) else None
    if isinstance(value, bool) or number is None:
        return fold_text(text).rstrip(".")
    return number.written


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The answer must match `schema`. An invalid schema raises ConfigError when the reward is
    built. Schema references are never fetched."""

    schema: Mapping[str, object]
    fenced: bool = False
    _validator: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        library = import_extra("jsonschema", "the schema reward", "schema")
        referencing = import_extra("referencing", "the schema reward", "schema")
        kind = library.validators.validator_for(self.schema, default=library.Draft202012Validator)
        try:
            kind.check_schema(self.schema)
        except library.SchemaError as error:
            message = f"the JSON schema of the reward is not valid: {error.message}"
            raise ConfigError(message, hint="correct the schema") from None
        validator = kind(self.schema, registry=referencing.Registry())
        object.__setattr__(self, "_validator", validator)

    def __call__(self, example: Example, output: str) -> Score:
        try:
            value = parse_json(strip_fence(output) if self.fenced else output)
        except ValueError as error:
            return Score(0.0, f"The answer is not valid JSON: {error}.")
        found = cast("Iterable[Any]", self._validator.iter_errors(value))
        faults = ((".".join(map(str, e.absolute_path)), e.message[:200]) for e in found)
        errors = sorted(faults, key=itemgetter(0))
        if not errors:
            return Score(1.0, "The answer satisfies the JSON schema.")
        shown = "; ".join(f"at {path or 'the top'}: {words}" for path, words in errors[:_SHOWN])
        more = f"; and {len(errors) - _SHOWN} more" if len(errors) > _SHOWN else ""
        return Score(0.0, f"The answer breaks the JSON schema: {shown}{more}.")


def best_of(
    example: Example, output: str, score: Callable[[str, str], Score], *, whole: bool = False
) -> Score:
    """The best score by any of the accepted answers; `whole`: or by the list of them itself."""
    target = target_of(example)
    accepted = reading.accepted_answers(target)
    scores = [score(each, output) for each in accepted]
    if whole and accepted != (target,):
        scores.append(score(target, output))
    return max(scores, key=lambda each: each.value)


def target_of(example: Example) -> str:
    """y*. Raises RewardError when the example has none, since such a reward cannot judge without
    it."""
    if example.target is None:
        raise RewardError(
            f"example {example.id} has no target to compare with",
            hint="name the target column, or use a reward that needs none (json, regex, judge)",
        )
    return example.target


# Those that compare the answer with a reference, unless a fixed text replaces it.
COMPARING = frozenset({"exact", "normalised", "contains", "label", "numeric", "f1", "fields"})
# The rewards by their kind.
READY: Mapping[str, type[Any]] = {
    "exact": Exact,
    "normalised": Normalised,
    "contains": Contains,
    "label": Label,
    "regex": Regex,
    "numeric": Numeric,
    "f1": TokenF1,
    "json": ValidJson,
    "fields": JsonFields,
    "schema": JsonSchema,
}
