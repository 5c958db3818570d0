"""Names of models, and the keys that they need."""

import pytest

from promptcodebook.errors import ConfigError
from promptcodebook.lm.spec import Spec, missing_key, parse_spec, require_keys
from tests.build.cases import table


@pytest.mark.parametrize(("text", "environment", "url", "model", "keys"), table(__file__, "specs"))
def test_a_spec_names_address_model_and_keys(
    text: str, environment: dict[str, str], url: str, model: str, keys: list[str]
):
    """The key of openai goes to openai alone."""
    spec = parse_spec(text, environment)
    assert (spec.base_url, spec.model, spec.key_names) == (url, model, tuple(keys))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    table(__file__, "a_wrong_spec_says_what_is_wrong_and_what_to_write"),
)
def test_a_wrong_spec_says_what_is_wrong_and_what_to_write(text: str, message: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        parse_spec(text, {})
    assert message in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "text", table(__file__, "credentials_in_an_address_are_refused_and_not_repeated")
)
def test_credentials_in_an_address_are_refused_and_not_repeated(text: str):
    with pytest.raises(ConfigError) as caught:
        parse_spec(text, {})
    assert "hunter2" not in str(caught.value) + caught.value.hint + repr(caught.value)
    with pytest.raises(ConfigError) as moved:
        parse_spec("openai/x", {"OPENAI_BASE_URL": text})
    assert "hunter2" not in str(moved.value) + moved.value.hint


@pytest.mark.parametrize(("header", "sent"), [
    ("Authorization", {"Authorization": "Bearer k"}),
    ("api-key", {"api-key": "k"}),
])  # fmt: skip
def test_a_key_goes_in_the_header_that_its_provider_wants(header: str, sent: dict[str, str]):
    spec = Spec("x/m", "http", "https://x/v1", "m", key_names=("X_KEY",), key_header=header)
    assert spec.credentials({"X-Title": "t"}, {"X_KEY": "k"}).all_headers() == {
        "X-Title": "t", **sent
    }  # fmt: skip


def test_what_openai_serves_is_its_own_by_name_and_by_address():
    named, addressed = (parse_spec(text, {}) for text in (
        "openai/gpt", "https://api.openai.com/v1#gpt"
    ))  # fmt: skip
    assert (
        (named.kind, named.provider) == (addressed.kind, addressed.provider) == ("http", "openai")
    )
    assert parse_spec("https://host/v1#gpt", {}).provider == ""


# A provider that answers nobody without a key is told of before a call, or a run, is begun.


@pytest.mark.parametrize(
    ("spec", "variable"), table(__file__, "the_variable_to_export_is_named_until_it_is_set")
)
def test_the_variable_to_export_is_named_until_it_is_set(spec: str, variable: str) -> None:
    with pytest.raises(ConfigError, match="needs a key") as caught:
        require_keys({"simulated": {}, spec: {}}, {})
    assert spec in str(caught.value)
    assert caught.value.hint.startswith("export ") and variable in str(caught.value)
    with pytest.raises(ConfigError):
        require_keys({spec: {}}, {variable: "  "})
    require_keys({spec: {}}, {variable: "k"})


@pytest.mark.parametrize(("spec", "headers", "environment", "missing"), table(__file__, "keyless"))
def test_who_may_do_without_a_key_is_not_asked_for_one(
    spec: str, headers: list[str], environment: dict[str, str], missing: list[str]
) -> None:
    assert missing_key(spec, headers, environment) == tuple(missing)
