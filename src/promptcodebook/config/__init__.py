"""All settings of a run, as one frozen tree; with presets such as `small`. `paper` is Table 6;
`presets.toml` says where it differs from Algorithm 1 as printed, `full` from it, and `default`
from `full`."""

from promptcodebook.config.loading import TYPED, load_config, load_typed, merge, role_layers
from promptcodebook.config.schema import Budget, Config, OptimizerSettings

__all__ = [
    "TYPED",
    "Budget",
    "Config",
    "OptimizerSettings",
    "load_config",
    "load_typed",
    "merge",
    "role_layers",
]
