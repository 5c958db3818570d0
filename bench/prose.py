"""Plain English: fails where a text has a banned word, or where a count exceeds its ceiling.

python -m bench.prose            # what is wrong, and where; the counts beside their ceilings
python -m bench.prose --lower    # lowers each ceiling to the count that was reached

`prose.toml` lists the words with what to write instead. Pages may have none of them. Docstrings,
comments and messages of the package may have as many as its ceilings allow, and pages as many
sentences of more than 25 words. A ceiling is lowered, never raised.
"""

import argparse
import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("prose.toml")
# Written from strings of the package, where they are checked.
GENERATED = {"cli.md", "config.md", "rewards.md"}
MAX_WORDS = 25

_FENCE = re.compile(
    r"^ *(```|~~~).*?^ *\1$|^\$\$$.*?^\$\$$|^ {4}\S[^\n]*|^:::[^\n]*|^>[^\n]*", re.M | re.S
)
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|(?<=\|)\s|\s(?=\|)|\n(?=#)")
_END = re.compile(r"(?<=[.!?])[)\"*]*\s+(?=[\"(*`]*[A-Z0-9`])")


def pages(root: Path = ROOT) -> Iterator[Path]:
    """The pages of the root, of the examples, and of docs/ without what is generated."""
    yield from sorted(root.glob("*.md"))
    yield from sorted((root / "examples").rglob("*.md"))
    for page in sorted((root / "docs").rglob("*.md")):
        inside = page.relative_to(root / "docs")
        if inside.parts[0] != "results" and page.name not in GENERATED:
            yield page


def prose_of(markdown: str) -> str:
    """The page without code, formulas, quotations and the addresses of links, line for line. What
    is between backticks becomes one word."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found[0].count("\n")

    text = re.sub(r"<!--.*?-->", blank, _FENCE.sub(blank, markdown), flags=re.S)
    text = re.sub(r"`+[^`]+`+", lambda found: "`x`" + blank(found), text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """The docstrings, messages and comments of a module, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or "STRING" in tokenize.tok_name[token.type]:
            yield token.start[0], token.string


def matcher(words: Mapping[str, str]) -> re.Pattern[str]:
    """Finds each of the words by itself: `stand` is neither in `standard` nor in `stand-in`."""
    listed = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in words)
    return re.compile(rf"(?<![\w-])({listed})(?![\w-])", re.I)


def banned(text: str, words: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Each banned word of the text with its line, from 1."""
    for found in matcher(words).finditer(text):
        yield text.count("\n", 0, found.start()) + 1, " ".join(found[0].lower().split())


def long_sentences(prose: str) -> Iterator[str]:
    """The sentences of more than 25 words. A list's entry or a table's cell ends a sentence; names
    of code do not count."""
    for block in _BLOCK.split(prose):
        for sentence in _END.split(block):
            words = (word for word in sentence.split() if "`" not in word)
            if sum(any(c.isalpha() for c in word) for word in words) > MAX_WORDS:
                yield " ".join(sentence.split())


def check(root: Path, listed: Path) -> tuple[list[str], dict[str, int]]:
    """The faults, and the counts that have a ceiling: `sentences`, and each word in the source."""
    settings = tomllib.loads(listed.read_text("utf-8"))
    words, ceilings = settings["instead"], settings["ceilings"]
    faults: list[str] = []
    found: Counter[str] = Counter(dict.fromkeys(ceilings, 0))
    places: dict[str, list[str]] = {}
    for page in pages(root):
        prose = prose_of(page.read_text("utf-8"))
        where = page.relative_to(root)
        for line, word in banned(prose, words):
            faults.append(f"{where}:{line}: {word!r}; write {words[word]}")
        sentences = list(long_sentences(prose))
        found["sentences"] += len(sentences)
        places.setdefault("sentences", []).extend(f"{where}: {text}" for text in sentences)
    for module in sorted((root / "src").rglob("*.py")):
        where = module.relative_to(root)
        for start, text in texts_of(module.read_text("utf-8")):
            for line, word in banned(text, words):
                found[word] += 1
                places.setdefault(word, []).append(f"{where}:{start + line - 1}")
    for name, count in found.items():
        if count > ceilings.get(name, 0):
            instead = words.get(name, f"sentences of at most {MAX_WORDS} words")
            faults.append(f"{name!r}: {count}, at most {ceilings.get(name, 0)}; write {instead}")
            faults += [f"  {place}" for place in places[name]]
    return faults, dict(found)


def lower(listed: Path, found: Mapping[str, int]) -> None:
    """Writes each count that is below its ceiling in the ceiling's place."""
    text = listed.read_text("utf-8")
    ceilings = tomllib.loads(text)["ceilings"]
    lines = [f'"{name}" = {min(found[name], most)}\n' for name, most in ceilings.items()]
    listed.write_text(text.partition("[ceilings]\n")[0] + "[ceilings]\n" + "".join(lines), "utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.prose")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings to the counts")
    asked = parser.parse_args(arguments)
    faults, found = check(ROOT, LIST)
    print(*faults, sep="\n")
    if asked.lower:
        lower(LIST, found)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(found.items()) if count)
    print(f"{'plain' if not faults else 'not plain'}: {counts}")
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
