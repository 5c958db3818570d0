"""Settings: Table 6, what departs from it, and what a wrong key is told."""

import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ValidationError

import promptcodebook
from promptcodebook.calls import ROLES
from promptcodebook.cli.command import set_layer
from promptcodebook.config import Config, load_config, loading, merge
from promptcodebook.config.providers import providers
from promptcodebook.config.schema import RoleSettings, preset
from promptcodebook.config.secrets import beyond_sampling
from promptcodebook.errors import ConfigError
from promptcodebook.run.optimize import settings_of
from promptcodebook.store.header import digest
from tests.build.cases import table

PRESETS = Path(promptcodebook.__file__).parent / "config/presets.toml"


def test_the_paper_preset_is_table_6() -> None:
    paper = load_config({"preset": "paper"})
    assert (paper.size, paper.select) == (16, 4)
    assert paper.explore.model_dump(exclude={"policy"}) == {
        "epsilon": 1.0, "epsilon_min": 0.15, "gamma": 0.96, "tau": 0.5, "alpha": 0.3
    }  # fmt: skip
    update = paper.update
    assert (update.epochs, update.batch_size, update.steps_per_epoch) == (50, 15, 1)
    assert update.max_gradients == update.batch_size, "a rewrite reads its whole batch"
    sampling = {role: (s.temperature, s.top_p) for role, s in paper.roles.items()}
    expected = {
        "encoder": (0.0, 1.0), "generator": (0.7, 0.9), "executor": (0.6, 0.95),
        "critic": (0.3, 1.0), "attribution": (0.0, 1.0), "updater": (0.7, 0.9),
    }  # fmt: skip
    assert sampling | expected == sampling
    assert (paper.templates, paper.keep, paper.update.accept) == ("paper", "last", "always")
    assert paper.update.encoder_on_explored and paper.validation.every == 0


WHOLE = load_config({"preset": "paper"})


@pytest.mark.parametrize(("layers", "select"), [
    (({"size": 8},), 4),
    (({"size": 3},), 3),
    (({"preset": "lean"}, {"size": "2"}), 2),
    (({"size": 16, "select": 8}, {"size": 5}), 5),
    ((WHOLE.model_dump(), {"size": 1}), 1),
    (({"preset": "small", "size": 3}, {"preset": "quick"}), 3),
    (({"size": 3}, {"select": 2}), 2),
])  # fmt: skip
def test_a_codebook_with_fewer_instincts_takes_down_how_many_are_picked(
    layers: tuple[dict[str, Any], ...], select: int
) -> None:
    made = load_config(*layers)
    assert made.select == select and bool(loading.select_remark(made)) == (select == made.size)
    assert Config(size=made.size).select == min(4, made.size)


@pytest.mark.parametrize("config", [WHOLE, Config(), {}, {"preset": "default"}, None])
def test_the_keyword_size_takes_down_select_of_any_config(config: Any) -> None:
    assert (
        settings_of("optimize()", "exact", "simulated", {"size": 2, "config": config}).select == 2
    )


@pytest.mark.parametrize("layers", [({"size": 3, "select": 4},), ({"size": 3}, {"select": 4})])
def test_more_instincts_than_there_are_cannot_be_chosen(layers: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(ConfigError, match=r"select \(S = 4\) is larger than size \(K = 3\)"):
        load_config(*layers)


def _leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            out |= _leaves(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def test_the_file_to_start_from_lists_every_departure_of_full_from_paper() -> None:
    full, paper = (
        _leaves(load_config({"preset": name}).model_dump()) for name in ("full", "paper")
    )
    differ = {key for key in full if full[key] != paper.get(key)} - {"preset"}
    listed = re.findall(r"^#   ([a-z_.]+) +\S+ +instead of ", PRESETS.read_text(), re.MULTILINE)
    assert differ == set(listed)


def test_without_a_preset_only_the_instincts_learn_and_full_is_the_whole_method() -> None:
    usual, full = load_config({}), load_config({"preset": "full"})
    assert full.model_dump() == Config().model_dump()
    lean = load_config({"preset": "lean"})
    assert lean.model_copy(update={"preset": "default"}) == usual
    ours, whole = (_leaves(config.model_dump()) for config in (usual, full))
    assert {key: ours[key] for key in ours if ours[key] != whole[key]} == {
        "preset": "default", "compose": "verbatim", "encoder.mode": "static", "critic.stages": 1,
        "critic.trainable": False, "update.epochs": 30, "validation.subset": 30,
        "validation.finalists": 2,
    }  # fmt: skip
    quick = _leaves(load_config({"preset": "quick"}).model_dump())
    learned = ("compose", "encoder.mode", "critic.stages", "critic.trainable")
    assert {key: quick[key] for key in learned} == {key: ours[key] for key in learned}


@pytest.mark.parametrize(
    ("layer", "message", "hint"),
    [
        *table(__file__, "wrong_settings"),
        ({"roles": {"critic": {"extra": {"k": object()}}}}, "roles.critic.extra", ""),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_probably_meant(
    layer: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(layer, where="pco.toml")
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_later_layers_win_key_by_key() -> None:
    made = load_config(
        {"size": 8, "explore": {"tau": 1.0}},
        {"explore": {"alpha": 0.5}, "select": 2},
        {"roles": {"critic": {"model": "openai/x", "extra": {"top_k": 20}}}},
    )
    assert (made.size, made.select, made.explore.tau, made.explore.alpha) == (8, 2, 1.0, 0.5)
    critic, encoder = made.roles["critic"], made.roles["encoder"]
    assert (critic.model, critic.temperature, encoder.model) == ("openai/x", 0.0, None)
    assert made.roles["generator"].temperature == 0.6  # roles not named keep their defaults
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge(below, above) == {"a": {"b": 1, "c": 2}}
    assert (below, above) == ({"a": {"b": 1}}, {"a": {"c": 2}}), "layers are left alone"
    preset("paper")["explore"]["gamma"] = 0.5
    assert preset("paper")["explore"] == {"gamma": 0.96}
    # The text of a budget lifts the limits that it leaves out, and only at the top.
    limits = {"budget": {"calls": 9, "reserve_for_verdict": 0.5}}
    budget = load_config(limits, {"budget": "2Mtok"}, {"budget": {"usd": 3.0}}).budget
    kept = {"tokens": 2_000_000, "usd": 3.0, "reserve_for_verdict": 0.5}
    assert budget.model_dump(exclude_none=True) == kept
    roles = {"critic": {"extra": {"budget": "low"}}}
    assert load_config({"roles": roles}).roles["critic"].extra == {"budget": "low"}


@pytest.mark.parametrize(("text", "fields"), [
    ("5usd", {"usd": 5.0}), ("$", None), ("2Mtok", {"tokens": 2_000_000}),
    ("300ktok+10min", {"tokens": 300_000, "seconds": 600.0}),
    ("100calls, 1usd", {"calls": 100, "usd": 1.0}), ("5", None), ("five usd", None),
    ("-5usd", None), ("9" * 400 + "calls", None), ("9" * 308 + "Mtok", None),
])  # fmt: skip
def test_budgets_are_read_as_people_write_them(text: str, fields: dict[str, Any] | None) -> None:
    if fields is None:
        with pytest.raises(ConfigError, match="cannot read the budget"):
            loading.parse_budget(text)
    else:
        assert loading.parse_budget(text).model_dump(exclude_none=True) == fields


def test_a_configuration_survives_its_own_dump() -> None:
    made = load_config({"preset": "quick", "size": 9, "roles": {"judge": {"model": "simulated"}}})
    assert load_config(made.model_dump(mode="json")) == made


def test_none_in_words_is_none_in_a_file_as_in_set(tmp_path: Path) -> None:
    file = tmp_path / "pco.toml"
    file.write_text(
        'verdict_examples = "none"\n[budget]\nusd = "none"\n[roles.critic]\ntemperature = "none"\n'
        'max_tokens = "none"\nextra.response_format = "none"\n'
    )
    config = load_config(loading.read_toml(file))
    critic = config.roles["critic"]
    assert config.verdict_examples is critic.temperature is critic.max_tokens is None
    sets = set_layer(["roles.critic.temperature=none", "roles.critic.extra.response_format=none"])
    typed = load_config(sets).roles["critic"]
    assert typed.temperature is None and typed.extra == critic.extra == {"response_format": "none"}
    with pytest.raises(ConfigError, match="the run decides"):
        load_config({"roles": {"critic": {"extra": {"response_format": {"type": "text"}}}}})


def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration at .*pco\.toml"):
        loading.read_toml(tmp_path / "pco.toml")
    (tmp_path / "pco.toml").write_text("size = = 3", "utf-8")
    with pytest.raises(ConfigError, match="line 1"):
        loading.read_toml(tmp_path / "pco.toml")


def critic(*layers: dict[str, Any], **settings: Any) -> RoleSettings:
    return load_config(*layers, {"roles": {"critic": settings}} if settings else {}).roles["critic"]


@pytest.mark.parametrize(("name", "value"), table(__file__, "keys_in_headers"))
def test_a_key_in_a_header_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="PCO_") as caught:
        critic(headers={name: value})
    assert value not in f"{caught.value} {caught.value.hint}".split()
    assert "secret-value" not in f"{caught.value}{caught.value.hint}"
    for headers in (
        {"api-key": "$PCO_MY_KEY", "X-Team": "$OPENAI_API_KEY"},
        {"User-Agent": "me", "X-Title": "t", "OpenAI-Project": "p", "api-version": "1"},
    ):
        assert critic(headers=headers).headers == headers, (
            "its variable is named, or it is harmless"
        )


@pytest.mark.parametrize("name", providers()["providers"])
def test_settings_may_name_models_and_keys_of_every_provider(name: str) -> None:
    assert critic(model=f"{name}/a@1").model == f"{name}/a@1", "it is no address with a password"
    its = providers()["providers"][name]
    for key in its["keys"]:
        headers = {its.get("key_header", "Authorization"): f"${key}"}
        assert critic(headers=headers).headers == headers
    with pytest.raises(ConfigError, match="user name or password"):
        critic(model=f"{name}:hush@host/v1")


@pytest.mark.parametrize("fields", table(__file__, "secrets_in_bodies"))
def test_a_secret_in_a_body_field_is_refused_and_not_repeated(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"PCO_") as caught:
        critic(extra=fields)
    assert "hush" not in f"{caught.value}{caught.value.hint}".lower()
    kept = {
        "min_tokens": 3, "stop_token_ids": [1, 2], "prompt_cache_key": "mine", "stop_token": "X",
        "skip_special_tokens": False, "thinking_token_budget": 9, "guided_regex": "[a-z]$",
        "user": "$HOME", "provider": {"api_key": "$PCO_MY_KEY"},
    }  # fmt: skip
    assert critic(extra=kept).extra == kept, "no secrets"


A, B = "http://a:1/v1#m", "http://b:2/v1#m"
TOKEN = {"X-Token": "$PCO_TOKEN"}
GIVEN = {"roles": {"critic": {"headers": TOKEN, "extra": {"top_k": 20, "api_key": "$PCO_KEY"}}}}
NEW = {"X-New": "$PCO_NEW"}


@pytest.mark.parametrize(("layers", "headers"), [
    (({"lm": A, **GIVEN}, {"lm": "http://a:1/v1/chat/completions#other"}), TOKEN),
    (({"lm": A, **GIVEN}, {"lm": B}), {}),
    (({"lm": A, **GIVEN}, {"roles": {"critic": {"model": B}}}), {}),
    (({"lm": A, **GIVEN}, {"roles": {"judge": {"model": B}}}), TOKEN),
    (({"lm": A, **GIVEN}, {"lm": "openai/m"}, {"lm": A}), {}),
    (({"lm": A, **GIVEN}, {"lm": B, "roles": {"critic": {"headers": NEW}}}), NEW),
    # Given before any address they go to the first.
    ((GIVEN, {"lm": A}), TOKEN),
    ((GIVEN, {"lm": A}, {"lm": B}), {}),
    (({"lm": A}, GIVEN), TOKEN),
])  # fmt: skip
def test_headers_and_secrets_go_only_to_the_address_that_they_were_given_for(
    layers: tuple[dict[str, Any], ...], headers: dict[str, str]
) -> None:
    made = critic(*layers)
    assert made.headers == headers
    kept = {"api_key": "$PCO_KEY"} if headers == TOKEN else {}
    assert made.extra == {"top_k": 20, **kept}


@pytest.mark.parametrize("spec", table(__file__, "passwords"))
def test_a_password_in_an_address_is_refused_and_not_repeated(spec: str) -> None:
    for tree in ({"lm": spec}, {"roles": {"critic": {"model": spec}}}):
        with pytest.raises(ConfigError, match="user name or password") as caught:
            load_config(tree)
        assert "hunter2" not in f"{caught.value}{caught.value.hint}"
    with pytest.raises(ValidationError) as by_hand:
        Config(lm=spec)
    assert "hunter2" not in str(by_hand.value)
    for model in (
        "litellm/cloudflare/@cf/llama",
        "openai/m@2024",
        "http://h/v1#@cf/m",
        "http://h#m@r",
    ):
        assert load_config({"lm": model}).lm == model, "a model's name may have an @"


@pytest.mark.parametrize(("name", "value"), table(__file__, "beyond_sampling"))
def test_a_field_that_may_say_where_a_request_goes_is_more_than_sampling(
    name: str, value: Any
) -> None:
    assert beyond_sampling({"min_p": 0.1, name: value}) == [name]
    kwargs = {"enable_thinking": False, "chat_template": "{{ x }}", "tools": [], "thinking": {}}
    found = beyond_sampling({"chat_template_kwargs": kwargs, "reasoning": {"effort": "low"}})
    assert found == [f"chat_template_kwargs.{n}" for n in ("chat_template", "tools", "thinking")]
    drawn = {"top_k": 3, "stop": "\n\n", "stop_token_ids": [1], "logit_bias": {"50256": -100}}
    assert beyond_sampling({**drawn, "thinking": {"type": "enabled", "budget_tokens": 9}}) == []


class Slip(BaseModel):
    number: int
    kind: Literal["a", "b"] = "a"


@pytest.mark.parametrize(("change", "plain"), table(__file__, "forms"))
def test_a_model_is_a_form_and_a_plain_form_decides_only_how_replies_are_drawn(
    change: dict[str, Any], plain: bool
) -> None:
    roles = {"executor": {"extra": {"response_format": Slip}}}
    form: Any = load_config({"roles": roles}).roles["executor"].extra["response_format"]
    assert (form["type"], form["json_schema"]["name"]) == ("json_schema", "Slip")
    reward: Any = load_config({"reward": {"kind": "schema", "schema": Slip}}).reward
    assert reward["schema"]["properties"].keys() == Slip.model_fields.keys()
    form["json_schema"]["schema"]["properties"]["number"].update(change)
    assert beyond_sampling({"response_format": form}) == ([] if plain else ["response_format"])


# Every key can be looked up: its default, its kind and one line about it.

DOCS = Path(__file__).parents[2] / "docs"
KEYS = {key.key: key for key in loading.describe()}


def test_every_key_of_a_configuration_is_described_and_no_other() -> None:
    tables = {m.table: {} for m in loading.optimizer_settings().values()}
    priced = load_config({"prices": {"m": {"prompt": 1.0, "completion": 2.0}}}, tables)
    leaves = _leaves(priced.model_dump())
    one = {
        name.replace("roles.critic.", "roles.ROLE.").replace(".m.", ".MODEL.") for name in leaves
    }
    roles = [f"roles.{role}." for role in ROLES]
    assert set(KEYS) == {name for name in one if not name.startswith(tuple(roles))}
    assert len(KEYS) == len(loading.describe())
    for key in KEYS.values():
        assert len(key.text.split()) >= 3 and len(key.text) <= 140 and "\n" not in key.text, key
        assert key.text.endswith(".") and not key.text.endswith("..") and key.kind, key
    for group in {key.group for key in KEYS.values()} - {""}:
        assert loading.describe_group(group).endswith(".")
    with pytest.raises(KeyError):
        loading.describe_group("seed")


@pytest.mark.parametrize(
    ("key", "default", "kind"), table(__file__, "defaults_and_kinds_are_in_words")
)
def test_defaults_and_kinds_are_in_words(key: str, default: str, kind: str) -> None:
    """A default that differs by role names the roles."""
    assert (KEYS[key].default, KEYS[key].kind) == (default, kind)
    shown = KEYS["roles.ROLE.temperature"].default
    for part in shown.split("; "):
        value, _, names = part.removesuffix(")").partition(" (")
        for role in names.split(", "):
            assert Config().roles[role].temperature == float(value)
    assert all(role in shown for role in ROLES)


def test_a_stored_configuration_keeps_its_keys() -> None:
    """Runs compare what they hold with what is asked for: a renamed key would be a changed run."""
    tree = load_config({"preset": "paper"}).model_dump(mode="json")
    newer = "learn max_reply_mb optimizer reward_name router samples telemetry user_code verdict"
    for key in (*newer.split(), "verdict_examples"):  # since 0.2.0
        tree.pop(key)
    for newer in ("accept_on", "shared_by", "stop_when_flat"):
        tree["update"].pop(newer)
    for newer in ("fewer", "max_fallback"):
        tree["encoder"].pop(newer)
    tree["critic"].pop("safety")
    tree["critic"].pop("sees_reward")
    tree["init"].pop("split")
    for newer in ("form", "group", "header", "slices", "stratify"):
        tree["data"].pop(newer)
    tree["budget"].pop("reserve_for_verdict")
    tree["validation"].pop("examples")
    tree["validation"]["patience"] = 5  # the default of 0.1.0
    tree["update"]["max_gradients"] = 8  # its preset `paper`
    # What a preset sets now never lands in a run that began with another one of that name.
    for name in ("default", "quick", "small"):
        assert _leaves(preset(name)).keys() - {"router.kind", "init.split"} <= _leaves(tree).keys()
    assert digest(tree) == "c299778ab31bbfbb854a0162e86cb9ae14f15abeb20cb16ac069df6e82b0c6dc"


def test_a_stored_configuration_is_not_what_its_preset_sets_now() -> None:
    stored = Config(preset="default").model_dump(mode="json")
    assert load_config(stored).model_dump(mode="json") == stored


@pytest.mark.parametrize(
    ("group", "key", "nothing", "other"),
    [
        ("update", "maintain_every", 0, 4),
        ("update", "pool", "", "mine.jsonl"),
        ("", "instinct", {"kind": "text"}, {"kind": "demo"}),
    ],
)
def test_a_stored_configuration_may_have_a_key_that_is_gone_and_did_nothing(
    group: str, key: str, nothing: object, other: object
) -> None:
    stored = load_config({}).model_dump(mode="json")
    place = stored[group] if group else stored
    place[key] = nothing
    assert load_config(stored) == load_config({})
    place[key] = other
    with pytest.raises(ConfigError, match=f"{key}: this version no longer has that key"):
        load_config(stored)
