"""The benchmarks' public homes, with the paper's split sizes and seeds, and how a copy is fetched.
The real hosts were not reached when this was written: the tests run on a local stand-in."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from promptcodebook.base.paths import settle, sha256_of
from promptcodebook.base.text import shipped_table
from promptcodebook.data.load import read_source
from promptcodebook.data.table import Table
from promptcodebook.errors import DataError, TaskError, causes_of, did_you_mean, import_extra
from promptcodebook.paper.tasks.hover.score import gold_titles
from promptcodebook.paper.tasks.hover.task import ClaimRow, paper_splits, split_pool
from promptcodebook.tasks.home import RECORD, check_row, default_data_cache, kept_record
from promptcodebook.types import Example

RawRows = list[dict[str, object]]

_TIMEOUT_S = 60.0  # without a byte
_HOSTS = {
    "hub": ("HF_ENDPOINT", "https://huggingface.co", "{base}/datasets/{repo}/resolve/{rest}"),
    "github": ("PCO_GITHUB_RAW", "https://raw.githubusercontent.com", "{base}/{repo}/{rest}"),
}


@dataclass(frozen=True, slots=True)
class Remote:
    """A file of a data set on the Hugging Face hub, or of a repository on GitHub."""

    host: Literal["hub", "github"]
    repo: str
    path: str
    revision: str = "main"
    unpack: str = ""

    @property
    def url(self) -> str:
        """The file's address; HF_ENDPOINT and PCO_GITHUB_RAW name other hosts (mirrors)."""
        variable, default, form = _HOSTS[self.host]
        base = (os.environ.get(variable) or default).rstrip("/")
        return form.format(base=base, repo=self.repo, rest=f"{self.revision}/{self.path}")


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the copy is, how many rows each of its files has, and which files were downloaded."""

    folder: Path
    counts: Mapping[str, int]
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PublicSource:
    """A benchmark's public home; `arrange` makes its files' rows into splits (and a corpus)."""

    name: str
    files: tuple[Remote, ...]
    arrange: Callable[[Sequence[RawRows]], Mapping[str, RawRows]]
    note: str = ""

    def fetch(self, cache_dir: Path | None = None, *, accept: bool = False) -> Fetched:
        """Writes the splits to `cache_dir`, or the user's cache. Raises TaskError when a file is
        missing or has changed."""
        cache_dir = cache_dir or default_data_cache()
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{self.name}-", dir=cache_dir) as place:
                return self._fetch(cache_dir / self.name, Path(place), accept)
        except OSError as error:
            message = f"{self.name} cannot be saved in {cache_dir}: {error.strerror or error}"
            raise TaskError(message, hint=f"pco data fetch {self.name} --cache FOLDER") from error

    def _fetch(self, folder: Path, place: Path, accept: bool) -> Fetched:
        name, files = self.name, list[tuple[Remote, Path]]()
        for number, remote in enumerate(self.files):
            files.append((remote, _download(remote, name, place / str(number))))
        digests = {f"{r.host}:{r.repo}@{r.revision}/{r.path}": sha256_of(p) for r, p in files}
        known = {} if accept else kept_record(folder).get("remote", {})
        changed = [file for file, digest in digests.items() if known.get(file, digest) != digest]
        if changed:
            message = f"{name} changed at its public source, not in {folder}: {', '.join(changed)}"
            raise TaskError(message, hint=f"pco data fetch {name} --accept takes the new files")
        tables = [_rows(remote, path) for remote, path in files if not remote.unpack]
        try:
            arranged = self.arrange(tables)
        except DataError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            message = f"{name}: its public files are not in the expected form ({error!r})"
            raise TaskError(message, hint=_elsewhere(name)) from None
        # The copy is made beside its place and moved there whole.
        fresh, local = place / name, dict[str, str]()
        fresh.mkdir(0o700)
        for part, rows in arranged.items():
            path = fresh / f"{part}.jsonl"
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            local[path.name] = sha256_of(path)
        for remote, path in files:
            if remote.unpack:
                _unpack(path, fresh / remote.unpack)
        record = {"remote": digests, "local": local}
        (fresh / RECORD).write_text(json.dumps(record, indent=1), "utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        settle(fresh, folder)
        return Fetched(folder, {part: len(rows) for part, rows in arranged.items()}, digests)


def _elsewhere(name: str) -> str:
    return f"--data DIR with the benchmark's files (docs/tasks/{name}.md says which fields)"


def _download(remote: Remote, name: str, folder: Path) -> Path:
    what = "fetching a benchmark"
    pooch, requests = (import_extra(name, what, "bench") for name in ("pooch", "requests"))
    folder.mkdir()
    path = folder / PurePosixPath(remote.path).name
    fetch = pooch.HTTPDownloader(timeout=_TIMEOUT_S, headers={"User-Agent": "promptcodebook"})
    try:
        fetch(remote.url, str(path), None)
        return path
    except requests.HTTPError as error:
        reason = f"the server answered {error.response.status_code}"
    except (OSError, ValueError) as error:
        *_, root = causes_of(error)
        why = getattr(root, "strerror", None) or root or type(root).__name__
        reason = f"it cannot be reached ({why})"
    hint = f"if offline, {_elsewhere(name)}; for a mirror, set {_HOSTS[remote.host][0]}"
    raise TaskError(f"{name}: {remote.url}: {reason}", hint=hint)


def _rows(remote: Remote, path: Path) -> RawRows:
    try:
        table = read_source(path)
    except DataError as error:
        # The temporary place says nothing to anybody; the address does.
        where = str(error).replace(str(path), remote.url)
        raise TaskError(where, hint="the public file is not as expected; pass --data DIR") from None
    return [dict(row.values) for row in cast(Table, table).rows]


def _unpack(path: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)  # drops absolute names and '..' itself
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):  # RuntimeError: encrypted
        message = f"the archive for {folder.name} is not a readable zip file"
        raise TaskError(message, hint="fetch again, or pass --data DIR") from None


def source_of(name: str) -> PublicSource:
    """Return the public home of a benchmark. Raises TaskError when the name is unknown."""
    if name in SOURCES:
        return SOURCES[name]
    known = sorted(SOURCES)
    message = f"no benchmark {name!r} to fetch{did_you_mean(name, known)}"
    raise TaskError(message, hint=f"pco data fetch NAME, where NAME is one of {', '.join(known)}")


def _shuffle(rows: RawRows) -> RawRows:
    # The protocol is stated in terms of Python's own generator, so it is followed with that.
    shuffled = list(rows)
    random.Random(0).shuffle(shuffled)
    return shuffled


def _cut(rows: RawRows, train: int, val: int, test: int | None = None) -> dict[str, RawRows]:
    """The first rows are train, the next val, the next test (None = all that are left)."""
    first, second = train, train + val
    end = None if test is None else second + test
    return {"train": rows[:first], "val": rows[first:second], "test": rows[second:end]}


def _aime(files: Sequence[RawRows]) -> Mapping[str, RawRows]:
    older, newest = files
    rows: RawRows = [
        {"id": f"aime-{r['id']}", **{k: str(r[k]) for k in ("problem", "answer", "solution")}}
        for r in older
    ]
    test: RawRows = [
        {"id": f"aime-2025-{r['problem_idx']}", "problem": r["problem"], "answer": str(r["answer"])}
        for r in newest
    ]
    half = len(rows) // 2
    return _cut(_shuffle(rows), half, len(rows) - half) | {"test": test}


def _ifbench(files: Sequence[RawRows]) -> Mapping[str, RawRows]:
    ifeval, test = files
    rows = [_request(r, "ifeval-") for r in sorted(ifeval, key=lambda r: int(str(r["key"])))]
    return _cut(_shuffle(rows), 150, 300) | {"test": [_request(r, "") for r in test]}


def _request(row: Mapping[str, object], prefix: str) -> dict[str, object]:
    kwargs = cast("list[dict[str, object]]", row["kwargs"])
    return {
        "key": f"{prefix}{row['key']}",
        "prompt": row["prompt"],
        "instruction_id_list": row["instruction_id_list"],
        "kwargs": [{k: v for k, v in each.items() if v is not None} for each in kwargs],
    }


def _livebench(files: Sequence[RawRows]) -> Mapping[str, RawRows]:
    rows = [
        {
            **{k: r.get(k) for k in ("question_id", "category", "task", "subtask", "ground_truth")},
            "question": cast("list[str]", r["turns"])[0],
        }
        for r in sorted((r for f in files for r in f), key=lambda r: str(r["question_id"]))
    ]
    return _cut(_shuffle(rows), 123, 123)


def _pupa(files: Sequence[RawRows]) -> Mapping[str, RawRows]:
    wanted = ("conversation_hash", "user_query", "target_response", "pii_units", "redacted_query")
    rows: RawRows = [
        {"id": f"pupa-{index}", "category": row.get("predicted_category") or row.get("category")}
        | {key: row[key] for key in wanted}
        for index, row in enumerate(files[0])
    ]
    return _cut(rows, 111, 111, 221)


def _pages(rows: Iterable[Mapping[str, object]]) -> dict[str, list[object]]:
    pages = dict[str, list[object]]()
    for row in rows:
        context = cast("dict[str, list[list[object]]]", row["context"])
        for title, sentences in zip(context["title"], context["sentences"], strict=True):
            pages.setdefault(str(title), sentences)
    return pages


def _hotpotqa(files: Sequence[RawRows]) -> Mapping[str, RawRows]:
    parts = split_pool(list(chain.from_iterable(files)))
    splits = dict[str, RawRows]()
    for split, rows in parts.items():
        splits[split] = []
        for row in rows:
            made = {key: row[key] for key in ("id", "question", "answer", "type", "level")}
            facts = cast("dict[str, list[object]]", row["supporting_facts"])
            pairs = zip(facts["title"], facts["sent_id"], strict=True)
            gold = {"gold_titles": list(dict.fromkeys(facts["title"]))}
            splits[split].append(made | {"supporting_facts": [list(p) for p in pairs]} | gold)
    corpus = _pages(chain.from_iterable(parts.values()))
    pages: RawRows = [{"title": t, "sentences": s} for t, s in corpus.items()]
    return splits | {"corpus": pages}


def _hover(files: Sequence[RawRows]) -> Mapping[str, RawRows]:
    """Train, val and test by the paper's protocol, and the corpus in the order of the titles. The
    paper's five million abstracts are on no hub that we know of. HoVer grew out of HotpotQA, whose
    paragraphs hold the gold pages of most claims; the other claims are left out."""
    corpus = _pages(chain.from_iterable(files[1:]))
    spelled = {unicodedata.normalize("NFD", title): title for title in corpus}
    pool = list[Example]()
    for number, row in enumerate(files[0], 1):
        claim = check_row(row, f"HoVER's record {number}", ClaimRow).example()
        gold = [spelled.get(unicodedata.normalize("NFD", title)) for title in gold_titles(claim)]
        if None not in gold:
            pool.append(Example(claim.id, claim.input, fields={**row, "gold_titles": gold}))
    splits: dict[str, RawRows] = {
        split: [dict(claim.fields) for claim in part] for split, part in paper_splits(pool).items()
    }
    pages: RawRows = [{"title": t, "sentences": corpus[t]} for t in sorted(corpus)]
    return splits | {"corpus": pages}


_ARRANGE = {
    "aime": _aime,
    "hotpotqa": _hotpotqa,
    "hover": _hover,
    "ifbench": _ifbench,
    "livebench_math": _livebench,
    "pupa": _pupa,
}
_READ = shipped_table(__file__, "public_sources.toml")
# The benchmarks that `pco data fetch` takes from their public homes.
SOURCES: Mapping[str, PublicSource] = {
    name: PublicSource(name, tuple(Remote(**file) for file in read["files"]), arrange, read["note"])
    for name, arrange in _ARRANGE.items()
    for read in (_READ[name],)
}
