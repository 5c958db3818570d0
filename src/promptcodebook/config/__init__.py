"""All settings of a run, as one frozen tree; presets `default`, `paper`, `quick`, `small`.

`paper` is Table 6 to the letter. `default` departs from it in these places, each with its reason:

| key | paper | default | why |
|---|---|---|---|
| roles.critic.temperature | 0.3 | 0.0 | the paper's own sweep: noise in the verdict breaks credit |
| roles.generator.temperature | 0.7 | 0.6 | the paper's sweep peaks at 0.6 |
| templates | paper | default | prefix-cacheable order, per-index gradients, the task's format |
| update.accept | always | always | no real model told the rules apart yet; see docs/method.md |
| critic.sees_reward | false | true | the printed critic scores without r; ours need not guess it |
| encoder.max_fallback | 1.0 | 0.2 | unguarded, θ may drift until nothing routes any more |
| update.encoder_on_explored | true | false | θ did not choose the explored routes |
| update.shared_by | 1 | 2 | one input's complaint in θ or φ hurt every prompt |
| update.instinct_words | 60 | 25 | longer ones turn into grab-bags of several skills |
| explore.gamma | 0.96 | derived | ε reaches ε_min at 90 % of the planned steps |
| keep | last | best_val | the last step is a sample, not the best |
| validation.every | 0 | 10 | keep and early stop need it |
"""

from __future__ import annotations

from promptcodebook.config.keys import Key, describe, describe_group
from promptcodebook.config.loading import (
    TYPED,
    comparable,
    default_tree,
    full_config,
    load_config,
    load_typed,
    merge,
    optimizer_settings,
    parse_budget,
    read_toml,
    role_layers,
    training_keys,
)
from promptcodebook.config.schema import (
    Budget,
    Config,
    CriticSettings,
    DataSettings,
    EncoderSettings,
    Explore,
    Init,
    OptimizerSettings,
    Preset,
    Price,
    RoleSettings,
    RouterSettings,
    Update,
    Validation,
    preset,
)
from promptcodebook.config.secrets import (
    beyond_sampling,
    body_fault,
    fill_secrets,
    header_fault,
    refuse_password,
    secret_variables,
    without_secrets,
)

__all__ = [
    "TYPED",
    "Budget",
    "Config",
    "CriticSettings",
    "DataSettings",
    "EncoderSettings",
    "Explore",
    "Init",
    "Key",
    "OptimizerSettings",
    "Preset",
    "Price",
    "RoleSettings",
    "RouterSettings",
    "Update",
    "Validation",
    "beyond_sampling",
    "body_fault",
    "comparable",
    "default_tree",
    "describe",
    "describe_group",
    "fill_secrets",
    "full_config",
    "header_fault",
    "load_config",
    "load_typed",
    "merge",
    "optimizer_settings",
    "parse_budget",
    "preset",
    "read_toml",
    "refuse_password",
    "role_layers",
    "secret_variables",
    "training_keys",
    "without_secrets",
]
