"""Personal data by Microsoft Presidio (extra `[presidio]`): names, and numbers of many countries.

Names need one of spaCy's English models, and none is fetched from here: without one Presidio looks
for numbers alone, and the audit says so. Its recognisers of e-mail addresses and URLs are left out,
since they fetch a list of domains and our own patterns find both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from promptcodebook.errors import import_extra
from promptcodebook.policy.audit.scan import Finding, excerpt
from promptcodebook.policy.audit.traces import Severity

_MODELS = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm")
_FETCHING = ("EmailRecognizer", "UrlRecognizer")
_LEAST_SCORE = 0.4
_SEVERITIES: Mapping[str, Severity] = {
    "PERSON": "medium",
    "IP_ADDRESS": "medium",
    "MAC_ADDRESS": "medium",
    "CREDIT_CARD": "high",
    "CRYPTO": "high",
    "IBAN_CODE": "high",
    "MEDICAL_LICENSE": "high",
    "PHONE_NUMBER": "high",
    "UK_NHS": "high",
    "US_BANK_NUMBER": "high",
    "US_DRIVER_LICENSE": "high",
    "US_ITIN": "high",
    "US_PASSPORT": "high",
    "US_SSN": "high",
}
"""Entities that are personal data of somebody; dates, places and groups are not by themselves."""


class PresidioScan:
    """Presidio with what is installed. Raises MissingExtra."""

    def __init__(self) -> None:
        what = "Presidio's search for personal data"
        modules = ("presidio_analyzer", "presidio_analyzer.nlp_engine", "spacy")
        presidio, engines, spacy = (import_extra(name, what, "presidio") for name in modules)
        model = next((name for name in _MODELS if spacy.util.is_package(name)), None)
        engine: Any = engines.SpacyNlpEngine()
        engine.nlp = {"en": spacy.load(model) if model is not None else spacy.blank("en")}
        registry: Any = presidio.RecognizerRegistry(supported_languages=["en"])
        registry.load_predefined_recognizers(languages=["en"], nlp_engine=engine)
        for name in _FETCHING:
            registry.remove_recognizer(name)
        self._analyzer: Any = presidio.AnalyzerEngine(
            registry=registry, nlp_engine=engine, supported_languages=["en"]
        )
        self.left_out: tuple[str, ...] = ()
        if model is None:
            self.left_out = (
                "names of persons: Presidio finds them with a model of spaCy, and none is "
                "installed (python -m spacy download en_core_web_sm)",
            )

    def find(self, text: str, where: str = "") -> Iterator[Finding]:
        """The personal data of a text, by its place."""
        found = self._analyzer.analyze(
            text, language="en", entities=list(_SEVERITIES), score_threshold=_LEAST_SCORE
        )
        for each in sorted(found, key=lambda one: (one.start, one.end, one.entity_type)):
            start, end, kind = int(each.start), int(each.end), str(each.entity_type)
            reason = f"it contains what Presidio takes for {kind} (score {float(each.score):.2f})"
            quote, severity = excerpt(text[start:end]), _SEVERITIES[kind]
            yield Finding(where, "personal", severity, start, end, quote, reason, "presidio")
