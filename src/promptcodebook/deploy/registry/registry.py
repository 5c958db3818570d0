"""Versions of policies that never change, refs that move, the log of every move, and all of it as
lines to hand on. A registry is one file (`log.py`). A ref moves to a version only if a model judged
it and no audit's high finding is open. The log keeps audits."""

from __future__ import annotations

import getpass
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from promptcodebook import errors
from promptcodebook.base.paths import data_folder, path_from
from promptcodebook.base.text import parse_json, printable, shell
from promptcodebook.deploy.audit.report import AuditReport, Finding, kind_in_words, part_in_words
from promptcodebook.deploy.registry.log import (
    CANARY,
    FIRST,
    LATEST,
    Broken,
    Log,
    LogEntry,
    LogFault,
    LogFile,
    canonical,
    check_name,
    check_ref,
    version_of,
)
from promptcodebook.policy.file import PolicyFile, parse_policy_file
from promptcodebook.policy.references import DEPLOY, NO_VERDICT, StoredVersion

AUDIT = "audit"  # the topic under which reports are attested
_MOST_WORDS = 4000  # characters of a reason


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a version came from, outside of its hash: the version that it was made from, a run's
    id, the updates behind it, the run's settings without secrets, the fingerprint of each split,
    the version of this library, and the run's verdict. Two versions with the same `digest` prompt
    alike."""

    parent: str = ""
    run: str = ""
    step: int | None = None
    score: float | None = None
    configuration: Mapping[str, Any] = field(default_factory=dict[str, Any])
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    written_by: str = ""
    digest: str = ""
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """A stored policy: where it came from, when and by whom it was first stored, and its refs."""

    version: str
    facts: Mapping[str, Any]
    time: str
    who: str
    refs: tuple[str, ...] = ()

    @classmethod
    def of(cls, log: Log, name: str) -> Version:
        entry = log.versions[name]
        refs = tuple(ref for ref, at in log.refs.items() if at == name)
        return cls(name, entry.known, entry.time, entry.who, refs)


def _audited(
    trees: Sequence[Mapping[str, Any]], digest: str, short: str, ref: str, without_judge: bool
) -> dict[str, JsonValue]:
    """Facts of passed audits for the log. A high finding counts against a version until a later
    audit that covered as much has none. Raises PromotionRefused."""
    reports: list[AuditReport] = []
    for tree in trees:
        with suppress(errors.PolicyError):  # one in another version's form counts as no audit
            reports.append(AuditReport.from_json(tree))
    reports = [report for report in reports if report.policy == digest]
    stays, audit = f"{ref} does not move", f"pco registry audit {short}"
    if not reports:
        hint = f"{audit}, then promote it; or --override REASON"
        raise errors.PromotionRefused(f"{short} was never audited, so {stays}", hint=hint)
    for place, report in enumerate(reports):
        if report.fails and not any(later.undoes(report) for later in reports[place + 1 :]):
            worst, *others = report.of("high")
            judge = f" by {report.judge}" if report.judge else ""
            more = f", and {len(others)} more" if others else ""
            found = _in_words(worst)
            found += more if worst.source == "judge" else f" ({worst.reason}){more}"
            hint = f"{audit} shows what was found; --override REASON moves it anyway"
            if worst.source == "judge":
                hint = f"if {report.judge} is too weak to judge, record that: --override "
                hint += "REASON; an audit by another model does not undo this one"
            message = f"{short} failed its audit{judge}: {found}; {stays}"
            raise errors.PromotionRefused(message, hint=hint)
    audited: list[JsonValue] = []
    audited += dict.fromkeys(r.judge or "rules" for r in reports if not r.fails)
    if any(report.passes for report in reports):
        return {"audited": audited}
    if not without_judge:
        message = f"no model judged {short}, and rules miss most harm in prose, so {stays}"
        hint = f"{audit} --lm URL#MODEL asks a judge; --without-judge relies on the rules"
        raise errors.PromotionRefused(message, hint=hint)
    return {"audited": audited, "without_judge": True}


def _in_words(finding: Finding) -> str:
    return f"{kind_in_words(finding.kind)} in {part_in_words(finding.where)}"


@dataclass(frozen=True, slots=True)
class Canary:
    """A version that a `share` of a ref's requests tries while the ref points to `control`. `split`
    ('conversation', 'caller' or 'header:NAME') says what keeps its version. It is promoted where
    its reward is above the control's by more than `margin`. `gate` is what it passed."""

    ref: str
    version: str
    control: str
    began: datetime
    share: float
    margin: float
    split: str
    gate: Mapping[str, Any]

    @classmethod
    def of(cls, log: Log, ref: str) -> Canary | None:
        """The one under way."""
        if (entry := log.canaries.get(ref)) is None:
            return None
        plan = {name: entry.canary[name] for name in ("share", "margin", "split", "gate")}
        began = datetime.fromisoformat(entry.time)
        return cls(ref, entry.after, log.at(ref) or "", began, **plan)

    def tries(self, key: str) -> bool:
        """Whether what has this key gets the canary: the same for the same key, on all servers."""
        text = f"{self.version} {self.began.timestamp()} {key}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.sha256(text).digest()[:8]) < self.share * 2**64


@dataclass(frozen=True, slots=True)
class Verification:
    """How many entries and versions are whole, the last entry's hash, and the faults, in order."""

    entries: int
    versions: int
    head: str
    faults: tuple[LogFault, ...]

    @property
    def passes(self) -> bool:
        return not self.faults


class Registry:
    """Stores versions, moves refs; safe for threads and processes. The log has `who` and when.

    `source` is NAME@REF or sha256:DIGITS, `ref` is NAME@REF, and `why` a reason for the log ('').
    """

    def __init__(
        self, path: Path, who: str = "", clock: Callable[[], datetime] | None = None
    ) -> None:
        self.file = LogFile(path)
        self._who = printable(who) or user_name()
        self._clock = clock or (lambda: datetime.now(UTC))

    def freeze(self, policy: str, name: str, facts: Facts | None = None, why: str = "") -> Version:
        """Stores the text of a policy file for good and moves NAME@latest to it. The same bytes are
        stored once.

        - `policy`: the file's text.
        - `name`: NAME.
        - `facts`: what is known of it; without a parent, the one that NAME@latest pointed to.

        Raises PolicyError for a text that is no policy file."""
        known = asdict(facts or Facts())
        self.store(policy, f"{check_name(name)}@{LATEST}", known, why)
        return self.version(version_of(policy.encode()))

    def store(
        self, policy: str, ref: str, facts: Mapping[str, Any], why: str = ""
    ) -> LogEntry | None:
        """Freezes; the entry, None where the ref points to these bytes already."""
        digest = parse_policy_file(policy, f"the policy for {ref}").digest
        version = version_of(policy.encode())

        def propose(log: Log) -> list[LogEntry]:
            if log.at(ref) == version:
                return []
            parent = facts.get("parent") or log.at(ref) or ""
            known: dict[str, Any] = {**facts, "parent": parent, "digest": digest}
            return [self._entry(log, "freeze", ref, version, why, known)]

        return next(iter(self.file.append(propose, {version: policy})), None)

    def promote(
        self,
        source: str,
        ref: str,
        why: str = "",
        override: str = "",
        without_judge: bool = False,
        canary: Mapping[str, JsonValue] | None = None,
        despite_verdict: bool = False,
    ) -> LogEntry | None:
        """Moves `ref` to the version that `source` means.

        - `override`: a reason to move it although its audits are against it; the log keeps it ('' =
          none).
        - `without_judge`: whether audits by the rules alone are enough; the log says so (False).
        - `canary`: 'share', 'margin' and 'split': it is tried in place of a move (None).
        - `despite_verdict`: for a version whose verdict is not Deploy (False). One without any may
          be tried as a canary, which judges it.

        Returns the log's entry, None where the ref did not move. Raises RefNotFound, and
        PromotionRefused when its audits or the verdict are against it."""
        check_ref(ref)
        version = self.version(source)
        policy, short = self.policy(version.version), version.version[:19]
        verdict = str(version.facts.get("verdict") or policy.verdict or NO_VERDICT)
        judged_later = canary is not None and verdict == NO_VERDICT
        if verdict != DEPLOY and not (judged_later or despite_verdict):
            has = "no verdict" if verdict == NO_VERDICT else f"the verdict {verdict!r}"
            hint = "train it longer, or add --despite-verdict (in Python despite_verdict=True)"
            if not self.attestations(version.version, AUDIT):
                hint += f"; it also needs an audit: pco registry audit {short} --lm URL#MODEL"
            message = f"{short} has {has}, so {ref} does not move"
            raise errors.PromotionRefused(message, hint=hint)

        def propose(log: Log) -> list[LogEntry]:
            if log.at(ref) == version.version:
                return []
            facts: dict[str, JsonValue]
            try:  # in the transaction: a report that comes in at the last moment counts
                trees = self.attestations(version.version, AUDIT)
                facts = _audited(trees, policy.digest, short, ref, without_judge)
            except errors.PromotionRefused as error:
                if not (reason := printable(override).strip()):
                    raise
                facts = {"override": reason, "refused": str(error)}
            if canary is not None:
                log.resolve(ref)  # there is something to compare it with
                tried = {"ref": ref, **canary, "gate": facts}
                return [self._attested(log, version.version, CANARY, tried, why)]
            return [self._entry(log, "promote", ref, version.version, why, facts)]

        return next(iter(self.file.append(propose)), None)

    def rollback(self, ref: str, to: str = "", why: str = "") -> LogEntry:
        """Moves NAME@REF back to the version before, or to a version `to` that it was at. Rolled
        back twice it goes back two versions. Where a canary is under way, and no `to`, that ends
        and the ref stays. Raises RefNotFound where there is none."""
        check_ref(ref)

        def propose(log: Log) -> list[LogEntry]:
            log.resolve(ref)  # names the refs that exist
            if not to and (tried := Canary.of(log, ref)) is not None:
                return [self._ended(log, tried, False, why, {})]
            *earlier, now = log.history(ref)
            version = log.resolve(to) if to else earlier[-1] if earlier else ""
            if not version:
                hint = f"pco registry promote VERSION {shell(ref)}"
                raise errors.RefNotFound(f"{ref} has no version before {now}", hint=hint)
            if version == now:
                hint = f"pco registry log {shell(ref)}"
                raise errors.PolicyError(f"{ref} already points to {version}", hint=hint)
            if version not in earlier:
                message = f"{ref} was not at {version} before it moved to {now}"
                hint = f"pco registry promote {shell(version, ref)}"
                raise errors.PolicyError(message, hint=hint)
            return [self._entry(log, "rollback", ref, version, why, {})]

        return self.file.append(propose)[-1]

    def attest(
        self, source: str, topic: str, facts: Mapping[str, JsonValue], why: str = ""
    ) -> LogEntry:
        """Logs what was found about a version, such as an audit's report. One with a high finding
        ends the version's canaries.

        - `topic`: what it is about, such as "audit".
        - `facts`: what was found, as JSON.

        Returns the last entry that this made."""
        high: Sequence[Finding] = ()
        if topic == AUDIT:
            with suppress(errors.PolicyError):
                high = AuditReport.from_json(facts).of("high")

        def propose(log: Log) -> list[LogEntry]:
            version = log.resolve(source)
            entries = [self._attested(log, version, topic, facts, why)]
            for ref, begun in log.canaries.items():
                tried = Canary.of(log, ref)
                if high and tried is not None and begun.after == version:
                    message = f"its audit found {_in_words(high[0])}"
                    ended = self._ended(log, tried, False, message, {})
                    seq, previous = entries[-1].seq + 1, entries[-1].hash
                    entries.append(replace(ended, seq=seq, previous=previous).sealed())
            return entries

        return self.file.append(propose)[-1]

    def canary(self, ref: str) -> Canary | None:
        """The one under way for NAME@REF."""
        return Canary.of(self.file.read(), ref)

    def end_canary(
        self, canary: Canary, promoted: bool, why: str, figures: Mapping[str, JsonValue]
    ) -> LogEntry | None:
        """Promotes a canary, or rolls it back: the ref stays.

        - `canary`: the one that ends; `promoted`: whether it takes the ref.
        - `figures`: why, in numbers.

        Returns the log's entry, None where it ended before."""

        def propose(log: Log) -> list[LogEntry]:
            if Canary.of(log, canary.ref) != canary:
                return []
            return [self._ended(log, canary, promoted, why, figures)]

        return next(iter(self.file.append(propose)), None)

    def attestations(self, source: str, topic: str) -> tuple[Mapping[str, Any], ...]:
        """What was attested of a version under a topic, in order."""
        log = self.file.read()
        version = log.resolve(source)
        found = (e.known for e in log.entries if e.action == "attest" and e.after == version)
        return tuple(known["found"] for known in found if known["topic"] == topic)

    def resolve(self, source: str) -> str:
        """The version that NAME@REF or sha256:DIGITS means. Raises RefNotFound."""
        return self.file.read().resolve(source)

    def version(self, source: str) -> Version:
        """The same, with what is known of it."""
        log = self.file.read()
        return Version.of(log, log.resolve(source))

    def versions(self) -> tuple[Version, ...]:
        """All of them, in the order in which they were stored."""
        log = self.file.read()
        return tuple(Version.of(log, name) for name in log.versions)

    def text(self, source: str) -> str:
        """A version's policy file. Raises RegistryDamaged where its hash is wrong."""
        return self.file.policy(self.resolve(source))

    def policy(self, source: str) -> PolicyFile:
        """A version's policy. Raises RefNotFound, and RegistryDamaged where its hash is wrong."""
        return parse_policy_file(self.text(source), source)

    def refs(self) -> dict[str, str]:
        """The version of every ref, by NAME@REF."""
        return self.file.read().refs

    def history(self, ref: str = "") -> tuple[LogEntry, ...]:
        """The log of one ref (NAME@REF), of one codebook (NAME), or all of it ('')."""
        return self.file.read().about(ref)

    def before(self, ref: str) -> str | None:
        """The version that a ref would be rolled back to."""
        return next(iter(self.file.read().history(ref)[-2:-1]), None)

    def verify(self, head: str = "") -> Verification:
        """Recomputes the hash of every entry and policy file, and follows the chain. That its last
        entries were removed only `head` can show, the hash of an entry noted elsewhere."""
        log, faults = self.file.check()
        if head not in ("", FIRST) and all(entry.hash != head for entry in log.entries):
            what = f"no entry has the hash {head}: entries are missing at the end"
            faults.append(LogFault("the log", what))
        return Verification(len(log.entries), len(log.versions), log.head, tuple(faults))

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing stays open between two calls."""

    def _ended(
        self, log: Log, canary: Canary, promoted: bool, why: str, figures: Mapping[str, JsonValue]
    ) -> LogEntry:
        if promoted:
            facts = {**canary.gate, CANARY: figures}
            return self._entry(log, "promote", canary.ref, canary.version, why, facts)
        found = {"ref": canary.ref, "ended": "rolled back", "figures": dict(figures)}
        return self._attested(log, canary.version, CANARY, found, why)

    def _attested(
        self, log: Log, version: str, topic: str, found: Mapping[str, JsonValue], why: str
    ) -> LogEntry:
        facts = {"topic": topic, "found": dict(found)}
        return self._entry(log, "attest", "", version, why, facts)

    def _entry(
        self, log: Log, action: str, ref: str, version: str, why: str, facts: Mapping[str, Any]
    ) -> LogEntry:
        for reason in (why, str(facts.get("override", ""))):
            if len(reason) > _MOST_WORDS:
                raise errors.ConfigError(f"a reason may have at most {_MOST_WORDS} characters")
        plain = json.loads(json.dumps(facts, default=str), parse_constant=lambda _: None)
        return LogEntry(
            seq=log.next,
            time=self._clock().astimezone(UTC).isoformat(timespec="milliseconds"),
            who=self._who,
            action=action,
            ref=ref,
            before=log.at(ref) or "",
            after=version,
            why=printable(why),
            facts=canonical(plain),
            previous=log.head,
        ).sealed()


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without users
        return "unknown"


def open_registry(location: str | Path | None = None, who: str = "") -> Registry:
    """Open a registry; its file is made with its first version.

    - `location`: a SQLite file. None: `$PCO_REGISTRY`, else the user's own file.
    - `who`: the name that changes are recorded under ('': the user of this machine).

    Raises ConfigError where `$PCO_REGISTRY` is an address. Each later call raises StoreError where
    the file cannot be used."""
    place = location or path_from("PCO_REGISTRY") or data_folder() / "registry.sqlite"
    return Registry(Path(place).expanduser(), who)


def stored_version(ref: str) -> StoredVersion:
    with open_registry() as registry:
        version, text = registry.version(ref), registry.text(ref)
        before = registry.before(ref) if "@" in ref else None
    run = version.facts.get("run")
    verdict = str(version.facts.get("verdict") or "")
    run = run if isinstance(run, str) else ""
    return StoredVersion(version.version, text, run, before or "", verdict)


FORMAT = "promptcodebook registry 1"
# What to type in the place of an import, where a log is missing or is another one.
_SINGLE = "one version: pco export REF --to json -o FILE; pco registry freeze FILE NAME"


@dataclass(frozen=True, slots=True)
class Taken:
    """What an import brought: versions that were not there before, entries, the last one's hash."""

    versions: int
    entries: int
    head: str


def export_lines(registry: Registry) -> Iterator[str]:
    """A registry as JSON lines. Raises RegistryDamaged.

        {"kind":"registry","format":"promptcodebook registry 1",...}
        {"kind":"version","version":"sha256:...","policy":"...","facts":{...}}     each version
        {"kind":"entry","entry":{...}}                                            each entry
        {"kind":"end","lines":N}

    Every line carries the hash of all lines up to it (`sum`), so an import names a line with a
    changed byte before it takes anything in."""
    trees: list[dict[str, Any]] = [{"kind": "registry", "format": FORMAT}]
    for version in registry.versions():
        text = registry.text(version.version)
        stored = {"version": version.version, "policy": text, "facts": dict(version.facts)}
        trees.append({"kind": "version", **stored})
    trees += [{"kind": "entry", "entry": asdict(entry)} for entry in registry.history()]
    trees.append({"kind": "end", "lines": len(trees) + 1})
    summed: dict[str, Any] = {"sum": ""}
    for tree in trees:
        summed = _summed(tree, summed["sum"])
        yield f"{canonical(summed)}\n"


def _summed(tree: Mapping[str, object], before: str) -> dict[str, Any]:
    digest = hashlib.sha256(f"{before}\n{canonical(tree)}".encode()).hexdigest()
    return {**tree, "sum": digest}


def import_lines(registry: Registry, lines: Iterable[bytes]) -> Taken:
    """Takes in what was exported, once all of it is verified, into an empty registry, or into one
    whose log it continues. Raises RegistryDamaged naming the first bad line, StoreError where the
    logs differ."""
    policies, theirs = _read_lines(lines)
    before = len(registry.versions())
    if not theirs.entries:
        raise errors.StoreError("the file contains no log", hint=_SINGLE)
    for version, text in policies.items():
        parse_policy_file(text, version)

    def propose(log: Log) -> list[LogEntry]:
        shared = min(len(log.entries), len(theirs.entries))
        if log.entries[:shared] != theirs.entries[:shared]:
            message = f"the imported log does not continue that of {registry.file.path}"
            raise errors.StoreError(message, hint=_SINGLE)
        return theirs.entries[shared:]

    entries = len(registry.file.append(propose, policies))
    return Taken(len(registry.versions()) - before, entries, registry.file.read().head)


def _read_lines(lines: Iterable[bytes]) -> tuple[dict[str, str], Log]:
    """The policies by version, and the log: each line is verified, and none is missing."""
    versions, log = dict[str, str](), Log()
    number, sum_, ended = 0, "", False
    try:
        for number, line in enumerate(lines, 1):
            if ended:
                raise Broken("it comes after the end of the log")
            tree = parse_json(line)
            summed = _summed({key: tree[key] for key in tree if key != "sum"}, sum_)
            if f"{canonical(summed)}\n".encode() != line:
                raise Broken("it has been changed: its hash differs")
            sum_, ended = summed["sum"], tree["kind"] == "end"
            _take_line(tree, versions, log, number)
        if not ended:
            number += 1
            raise Broken("it is missing: the file is truncated")
    except (Broken, ValueError, TypeError, LookupError, AttributeError) as error:
        fault = error if isinstance(error, Broken) else "it is not a line of an exported registry"
        message = f"line {number} of the file: {fault}; nothing was imported"
        raise errors.RegistryDamaged(message, hint="export it again, or get another copy") from None
    return versions, log


def _take_line(tree: dict[str, Any], versions: dict[str, str], log: Log, number: int) -> None:
    first = tree["kind"] == "registry"
    if first != (number == 1) or (first and tree["format"] != FORMAT):
        raise Broken(f"it is out of place in a file of format {FORMAT!r}")
    if tree["kind"] == "version":
        version, text = tree["version"], str(tree["policy"])
        if version_of(text.encode("utf-8", "surrogatepass")) != version:
            raise Broken(f"its policy is not {version}")
        versions[version] = text
    elif tree["kind"] == "entry":
        entry = LogEntry.of(tree["entry"])
        log.add(entry)
        if entry.after not in versions:
            raise Broken(f"the file does not hold its version {entry.after}")
    elif tree["kind"] == "end" and tree["lines"] != number:
        raise Broken("it is the last line of a different file")
