"""What settings may hold in the open: they are kept with every run, so a secret stands in them only
by the name of the variable that it is in, "$PCO_MY_KEY"."""

from __future__ import annotations

import re

__all__ = ["header_fault", "refuse_password"]

_HARMLESS = frozenset(
    {
        *("accept", "accept-language", "anthropic-beta", "anthropic-version", "api-version"),
        *("http-referer", "openai-beta", "openai-organization", "openai-project", "referer"),
        *("user-agent", "x-title"),
    }
)
"""Headers that may stand in the settings, and so in every run's folder, word for word."""
_KEY_NAMES = frozenset(
    {
        *("ANTHROPIC_API_KEY", "AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "CEREBRAS_API_KEY"),
        *("COHERE_API_KEY", "DEEPSEEK_API_KEY", "FIREWORKS_API_KEY", "GEMINI_API_KEY"),
        *("GOOGLE_API_KEY", "GROQ_API_KEY", "HF_TOKEN", "MISTRAL_API_KEY", "NVIDIA_API_KEY"),
        *("OPENAI_API_KEY", "OPENROUTER_API_KEY", "PERPLEXITY_API_KEY", "TOGETHER_API_KEY"),
        "XAI_API_KEY",
    }
)
"""Variables beside PCO_* that a header may name: settings must not reach for any other."""
_OWN_NAME = re.compile(r"PCO_[A-Za-z0-9_]+")


def header_fault(name: str, value: str) -> str:
    """Why a header may not stand in the settings; '' = it may. Never repeats what it holds."""
    if value.startswith("$"):
        variable = value[1:]
        if variable in _KEY_NAMES or _OWN_NAME.fullmatch(variable):
            return ""
        return (
            f"{name!r} may name only a variable that begins with PCO_, or a provider's usual one "
            f'such as OPENAI_API_KEY: "{name}" = "$PCO_MY_KEY"'
        )
    if name.lower() in _HARMLESS:
        return ""
    return (
        f"{name!r} may hold a secret, and settings are kept with the run: name the variable that "
        f'it is in, "{name}" = "$PCO_API_KEY", or any other that begins with PCO_'
    )


def refuse_password(spec: str) -> str:
    """The spec of a model. ValueError, which does not repeat it, if its address holds a password.

    A model's name may hold an '@': what comes before it is then no host.
    """
    head, _, name = spec.partition("#")
    ours = head.split("/")[0] in ("openai", "litellm") or head.startswith("simulated")
    if ("@" in head and not ours) or ("@" in name and ("#" in name or "://" in name)):
        raise ValueError(
            "the model's address contains a user name or password; take it out, and put the key "
            "in the variable PCO_API_KEY"
        )
    return spec
