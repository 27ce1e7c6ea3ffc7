"""Settings of a run, the same in a YAML file, on the command line and in `fedspecial.run(...)`.

settings  the common settings: defaults, ranges, descriptions
values    their types
sources   key=value arguments, files, presets
resolve   how they are merged and checked
describe  what is shown of them: tables and the JSON schema

Nothing here imports torch before a method's class is needed.
"""

from fedspecial.config.method_class import check_method_class
from fedspecial.config.resolve import (
    RunSettings,
    check_common,
    merge_settings,
    refuse_data_settings,
    refuse_unread_data,
    resolve,
    unknown_setting,
)
from fedspecial.config.settings import EXECUTION, GROUPS, Config, data_folder
from fedspecial.config.sources import (
    benchmark_of_preset,
    parse_settings,
    preset_names,
    preset_settings,
    read_run_file,
    read_settings,
)
from fedspecial.config.values import GivenObject, Settings, given_object, is_given_object

__all__ = [
    "EXECUTION",
    "GROUPS",
    "Config",
    "GivenObject",
    "RunSettings",
    "Settings",
    "benchmark_of_preset",
    "check_common",
    "check_method_class",
    "data_folder",
    "given_object",
    "is_given_object",
    "merge_settings",
    "parse_settings",
    "preset_names",
    "preset_settings",
    "read_run_file",
    "read_settings",
    "refuse_data_settings",
    "refuse_unread_data",
    "resolve",
    "unknown_setting",
]
