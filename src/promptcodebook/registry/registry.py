"""Versions of policies that never change, refs that move, and the log of every move.

A registry lies in one file (`sqlite.py`) or on an MLflow server (`mlflow.py`); what holds for both
is here. A ref moves to a version only if an audit found nothing high, with a model as judge. The
log keeps the audits' reports; `verify` recomputes every hash and follows the chain.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, cast

from pydantic import JsonValue

from promptcodebook.audit.report import AuditReport
from promptcodebook.errors import (
    ConfigError,
    PolicyError,
    PromotionRefused,
    RefNotFound,
    RegistryDamaged,
)
from promptcodebook.paths import registry_location
from promptcodebook.policy.file import PolicyFile, parse_policy_file
from promptcodebook.policy.references import Reference, StoredVersion
from promptcodebook.registry.log import (
    ATTEST,
    FIRST,
    FREEZE,
    LATEST,
    PROMOTE,
    ROLLBACK,
    Broken,
    Entry,
    Log,
    canonical,
    check_name,
    check_ref,
    version_of,
)
from promptcodebook.registry.sqlite import VERIFY, SqliteStorage
from promptcodebook.registry.storage import Facts, Proposal, Row, Storage, Version
from promptcodebook.text import printable

AUDIT = "audit"
"""The topic under which reports are attested."""


class Gate(Protocol):
    """What a version must pass before a ref is moved to it; a rollback passes none.

    Returns what the log's entry is to say of it (JSON values). Raises PromotionRefused.
    """

    def __call__(
        self, version: Version, policy: PolicyFile, ref: str
    ) -> Mapping[str, JsonValue]: ...


@dataclass(frozen=True, slots=True)
class AuditGate:
    """What an audit found to be high stands against the version, until a later audit that looked
    at as much finds nothing of that kind.

    `attestations` are what was attested of a version under a topic, in order. `without_judge` =
    audits by the rules alone are enough, and the log's entry says so.
    """

    attestations: Callable[[str, str], Sequence[Mapping[str, Any]]]
    without_judge: bool = False

    def __call__(self, version: Version, policy: PolicyFile, ref: str) -> Mapping[str, JsonValue]:
        found = _reports(self.attestations(version.version, AUDIT))
        reports = [report for report in found if report.policy == policy.digest]
        audit = f"pco codebook audit {version.version[:19]}"
        if not reports:
            raise PromotionRefused(
                f"{version.version[:19]} was never audited, and {ref} stays where it is",
                hint=f"{audit}, then promote it; or --override REASON",
            )
        for place, report in enumerate(reports):
            later = reports[place + 1 :]
            if report.fails and not any(each.undoes(report) for each in later):
                raise PromotionRefused(
                    f"{version.version[:19]} failed its audit{_where(report)}; {ref} stays where "
                    "it is",
                    hint=f"{audit} shows what was found; --override REASON moves it all the same",
                )
        audited: list[JsonValue] = []
        audited += dict.fromkeys(r.judge or "rules" for r in reports if not r.fails)
        if any(report.passes for report in reports):
            return {"audited": audited}
        if not self.without_judge:
            raise PromotionRefused(
                f"no model judged {version.version[:19]}, the rules alone miss most harm in prose, "
                f"and {ref} stays where it is",
                hint=f"{audit} --lm URL#MODEL asks a judge; --without-judge goes by the rules",
            )
        return {"audited": audited, "without_judge": True}


def _where(report: AuditReport) -> str:
    worst = report.of("high")
    judge = f" as {report.judge} judges it" if report.judge else ""
    more = f", and {len(worst) - 1} more" if worst[1:] else ""
    return f"{judge}: {worst[0].kind} in {worst[0].where}{more}"


def _reports(found: Sequence[Mapping[str, Any]]) -> list[AuditReport]:
    """Those that can be read: one in another version's form counts as no audit."""
    reports: list[AuditReport] = []
    for tree in found:
        with suppress(PolicyError):
            reports.append(AuditReport.from_json(tree))
    return reports


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verification:
    """How many entries and versions were found whole, the last entry's hash, and the faults, the
    first of the log's rows first."""

    entries: int
    versions: int
    head: str
    faults: tuple[Fault, ...]

    @property
    def passes(self) -> bool:
        return not self.faults


class _Walk:
    """The rows so far. After the first break each later entry is held to its own hash alone."""

    def __init__(self, head: str) -> None:
        self.log = Log()
        self.faults: list[Fault] = []
        self._wanted = head
        self._broken = False
        self._policies: dict[str, str] = {}

    def take(self, row: Row) -> None:
        if row.fault:
            self._broken = self._broken or row.policy is None
            self.faults.append(Fault(row.place, row.fault))
        elif row.entry is not None:
            self._take_entry(row.place, row.entry)
        elif row.policy is not None:
            self._take_policy(row.place, *row.policy)

    def _take_entry(self, place: str, entry: Entry) -> None:
        try:
            if not self._broken:
                self.log.add(entry)
            elif entry.digest != entry.hash:
                raise Broken("its content does not have the hash that it bears")
        except Broken as fault:
            self._broken = True
            self.faults.append(Fault(place, str(fault)))

    def _take_policy(self, place: str, version: str, policy: bytes) -> None:
        if version_of(policy) != version:
            self.faults.append(Fault(place, f"its bytes are not those of {version}"))
        elif not self._broken and version not in self.log.versions:
            self.faults.append(Fault(place, f"no entry of the log stored {version}"))
        self._policies[version] = place

    def end(self) -> Verification:
        versions = self.log.versions
        for version, entry in versions.items():
            if version not in self._policies:
                what = f"the policy file that it stored is missing: {version}"
                self.faults.append(Fault(f"row {entry.seq} of the log", what))
        if self._wanted and not self.log.holds(self._wanted):
            what = f"no entry has the hash {self._wanted}: entries are missing at its end"
            self.faults.append(Fault("the log", what))
        found = sum(version in self._policies for version in versions)
        return Verification(len(self.log), found, self.log.head, tuple(self.faults))


def verify(storage: Storage, head: str = "") -> Verification:
    """Recomputes the hash of every entry and of every policy file, and follows the chain.

    A chain does not tell that its last entries were taken off: `head`, the hash of an entry that
    was noted elsewhere, does ('' = none was).
    """
    walk = _Walk(head if head != FIRST else "")
    try:
        for row in storage.rows():
            walk.take(row)
    except RegistryDamaged as error:
        walk.faults.append(Fault(storage.place, str(error)))
    return walk.end()


_MOST_WORDS = 4000
"""Characters of a reason."""


class Registry:
    """Stores versions and moves refs; safe for threads and processes.

    The log names `who` did it; `clock` says when.
    """

    def __init__(
        self, storage: Storage, who: str = "", clock: Callable[[], datetime] | None = None
    ) -> None:
        self.storage = storage
        self._who = printable(who) or user_name()
        self._clock = clock or (lambda: datetime.now(UTC))

    def freeze(self, policy: str, name: str, facts: Facts | None = None, why: str = "") -> Version:
        """Stores the text of a policy file for good and moves NAME@latest to it.

        The same bytes again store nothing; NAME@latest moves where it stood elsewhere. The parent
        is the version that it stood at, unless the facts name one. Raises PolicyError for a text
        that is no policy file.
        """
        known = asdict(facts or Facts())
        self.store(policy, f"{check_name(name)}@{LATEST}", FREEZE, known, why)
        return self.version(version_of(policy.encode()))

    def store(
        self, policy: str, ref: str, action: str, facts: Mapping[str, Any], why: str = ""
    ) -> Entry | None:
        """What `freeze` and an import do; the entry, None where the ref stood there already."""
        digest = parse_policy_file(policy, f"the policy for {ref}").digest
        version = version_of(policy.encode())

        def propose(log: Log) -> Proposal:
            if log.at(ref) == version:
                return Proposal()
            known_parent = log.at(ref) if action == FREEZE else None
            parent = facts.get("parent") or known_parent or ""
            known: dict[str, Any] = {**facts, "parent": parent, "digest": digest}
            entry = self._entry(log, action, ref, version, why, known)
            stored = {} if version in log.versions else {version: policy}
            return Proposal((entry,), stored)

        moved = self.storage.append(propose)
        return moved[-1] if moved else None

    def promote(
        self, source: str, ref: str, why: str = "", override: str = "", gate: Gate | None = None
    ) -> Entry | None:
        """Moves NAME@REF to the version that `source` (NAME@REF or sha256:DIGITS) means.

        `gate` is what the version must pass: an audit with a judge, unless another is given, such
        as `AuditGate(registry.attestations, without_judge=True)`. With a reason to `override` it,
        the ref moves all the same, and the entry holds the reason and what the gate said. Returns
        the log's entry, None where the ref stood there already. Raises RefNotFound and
        PromotionRefused.
        """
        check_ref(ref)
        version = self.version(source)
        # A gate of somebody's own may take its time, or write; audits are read in the transaction.
        audits = AuditGate(self.attestations) if gate is None else gate
        own = isinstance(audits, AuditGate)
        found = None if own else self._passed(version, ref, audits, override)

        def propose(log: Log) -> Proposal:
            if log.at(ref) == version.version:
                return Proposal()
            passed = self._passed(version, ref, audits, override) if found is None else found
            return Proposal((self._entry(log, PROMOTE, ref, version.version, why, passed),))

        moved = self.storage.append(propose)
        return moved[-1] if moved else None

    def _passed(
        self, version: Version, ref: str, gate: Gate, override: str
    ) -> Mapping[str, JsonValue]:
        """What the entry of a promotion says of how the version came through its gate."""
        try:
            return dict(gate(version, self.policy(version.version), ref))
        except PromotionRefused as error:
            if not (reason := printable(override).strip()):
                raise
            return {"override": reason, "refused": str(error)}

    def rollback(self, ref: str, to: str = "", why: str = "") -> Entry:
        """Moves NAME@REF back to where it stood before, or to a version `to` that it was at.

        Rolled back twice it goes back two versions. Raises RefNotFound where there is none.
        """
        check_ref(ref)

        def propose(log: Log) -> Proposal:
            target = _target(log, ref, to)
            return Proposal((self._entry(log, ROLLBACK, ref, target, why, {}),))

        return self.storage.append(propose)[-1]

    def attest(
        self, source: str, topic: str, facts: Mapping[str, JsonValue], why: str = ""
    ) -> Entry:
        """Writes into the log what was found of a version, such as an audit's report."""

        def propose(log: Log) -> Proposal:
            version = log.resolve(source)
            known = {"topic": topic, "found": dict(facts)}
            return Proposal((self._entry(log, ATTEST, "", version, why, known),))

        return self.storage.append(propose)[-1]

    def attestations(self, source: str, topic: str) -> tuple[Mapping[str, Any], ...]:
        """What was attested of a version under a topic, in order."""
        log = self.storage.read()
        version = log.resolve(source)
        entries = (e.known for e in log if e.action == ATTEST and e.after == version)
        return tuple(known["found"] for known in entries if known["topic"] == topic)

    def resolve(self, source: str) -> str:
        """The version that NAME@REF or sha256:DIGITS means. Raises RefNotFound."""
        return self.storage.read().resolve(source)

    def version(self, source: str) -> Version:
        """The same, with what is known of it."""
        log = self.storage.read()
        name = log.resolve(source)
        entry = log.versions[name]
        refs = tuple(ref for ref, at in log.refs.items() if at == name)
        return Version(name, entry.known, entry.time, entry.who, refs)

    def versions(self) -> tuple[Version, ...]:
        """All of them, in the order in which they were stored."""
        return tuple(self.version(name) for name in self.storage.read().versions)

    def text(self, source: str) -> str:
        """The bytes of a version's policy file, as text; checked against its name.

        Raises RegistryDamaged where they are not what was stored.
        """
        version = self.resolve(source)
        policy = self.storage.policy(version)
        if version_of(policy) != version:
            raise RegistryDamaged(
                f"the registry {self.storage.place} is damaged: the bytes stored for {version} are "
                "not its bytes",
                hint=VERIFY,
            )
        return policy.decode()

    def policy(self, source: str) -> PolicyFile:
        """The policy of a version."""
        return parse_policy_file(self.text(source), source)

    def refs(self) -> dict[str, str]:
        """Where each ref stands."""
        return self.storage.read().refs

    def history(self, ref: str = "") -> tuple[Entry, ...]:
        """The log of one ref (NAME@REF), of one codebook (NAME), or all of it ('')."""
        return self.storage.read().about(ref)

    def before(self, ref: str) -> str | None:
        """The version that a ref would be rolled back to."""
        history = self.storage.read().history(ref)
        return history[-2] if len(history) > 1 else None

    def held(self, ref: str) -> Sequence[str]:
        """The versions that a ref can be rolled back through, the one that it stands at last: one
        that it was rolled back from is none of them."""
        return self.storage.read().history(ref)

    def watch(self, ref: str) -> Watch:
        """Tells when a ref moves. Raises RefNotFound where it does not exist."""
        return Watch(self.storage, ref, self.resolve(ref))

    def verify(self, head: str = "") -> Verification:
        """Every hash computed again; `head` is the hash of an entry noted elsewhere ('' = none)."""
        return verify(self.storage, head)

    def close(self) -> None:
        self.storage.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _entry(
        self, log: Log, action: str, ref: str, version: str, why: str, facts: Mapping[str, Any]
    ) -> Entry:
        for reason in (why, str(facts.get("override", ""))):
            if len(reason) > _MOST_WORDS:
                raise ConfigError(f"a reason of {len(reason)} characters is too long for the log")
        time = self._clock().astimezone(UTC).isoformat(timespec="milliseconds")
        plain = json.loads(json.dumps(facts, default=str), parse_constant=lambda _: None)
        known = canonical(plain)
        return Entry(
            seq=log.next,
            time=time,
            who=self._who,
            action=action,
            ref=ref,
            before=log.at(ref) or "",
            after=version,
            why=printable(why),
            facts=known,
            previous=log.head,
        ).sealed()


class Watch:
    """Polls a ref: what a server asks before a request, or once in a while."""

    def __init__(self, storage: Storage, ref: str, version: str) -> None:
        self._storage = storage
        self._ref = ref
        self.version = version
        """Where the ref stood when it was last asked."""

    def poll(self) -> str | None:
        """The version that the ref moved to since it was last asked; None where it did not.

        One look at an index (SQLite) or one request (MLflow). Raises StoreError.
        """
        now = self._storage.poll(self._ref)
        if now is None or now == self.version:
            return None
        self.version = now
        return now


def _target(log: Log, ref: str, to: str) -> str:
    history = log.history(ref)
    log.resolve(ref)  # says which refs there are
    if not to:
        if len(history) < 2:
            raise RefNotFound(
                f"{ref} was never anywhere else than at {history[-1]}",
                hint=f"pco codebook promote VERSION {ref}",
            )
        return history[-2]
    target = log.resolve(to)
    if target == history[-1]:
        raise PolicyError(f"{ref} stands at {target} already", hint=f"pco codebook log {ref}")
    if target not in history[:-1]:
        raise PolicyError(
            f"{ref} was not at {target} before it came to {history[-1]}",
            hint=f"pco codebook promote {target} {ref}",
        )
    return target


def user_name() -> str:
    """Who works here, as the system knows them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without users
        return "unknown"


def open_registry(location: str | Path | None = None, who: str = "") -> Registry:
    """The registry in a SQLite file or, for a URL, on an MLflow server; None = `$PCO_REGISTRY`,
    else the user's own. A file is made with its first version.

    Raises ConfigError for a URL that holds a password, MissingExtra without MLflow's client.
    """
    place = str(location or registry_location())
    if place.startswith(("http://", "https://")):
        from promptcodebook.registry.mlflow import MlflowStorage

        return Registry(MlflowStorage(place), who)
    return Registry(SqliteStorage(Path(place).expanduser()), who)


def stored_version(ref: str) -> StoredVersion:
    """What core reads of a version. Raises RefNotFound."""
    with open_registry() as registry:
        version, text = registry.version(ref), registry.text(ref)
        before = registry.before(ref) if "@" in ref else None
    run = version.facts.get("run")
    return StoredVersion(version.version, text, run if isinstance(run, str) else "", before or "")


def facts_of(reference: Reference) -> Facts:
    """Where a policy came from, as a registry keeps it beside the version."""
    header, best, about = reference.header, reference.best, reference.file.about
    if header is None or best is None:
        run, score, data = (about.get(key) for key in ("run", "score", "data"))
        return Facts(
            run=run if isinstance(run, str) else "",
            score=float(score) if isinstance(score, int | float) else None,
            data=cast("dict[str, Any]", data) if isinstance(data, dict) else {},
            written_by=str(about.get("version") or ""),
        )
    return Facts(
        run=header.id,
        step=best.step + 1,
        score=best.score,
        configuration=header.settings,
        data=dict(header.fingerprints),
        written_by=header.version,
    )
