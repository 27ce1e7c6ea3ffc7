"""What a site allows, whatever the server asks for. Needs neither Flower nor torch.

The policy is a YAML file at the site, which its node config names (``policy="/etc/fedspecial/policy.yaml"``). Without a
file the defaults below hold: built-in methods and models, the data that the node config names, errors without details.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedspecial.config import Settings, read_settings
from fedspecial.config.values import Names, Positive
from fedspecial.core.imports import is_object_name
from fedspecial.errors import InputError
from fedspecial.flower.governance.site_settings import NAMED, PolicyError, is_plain_name

EMBEDDED = ("digits-shift",)
"""Benchmarks that read no files, so that every site allows them in a trial."""
TASK_NOT_ALLOWED = "this task is not allowed"
TOO_FEW_SAMPLES = "there are fewer samples of this task, or of one of its classes, than min_group"


class SitePolicy(BaseModel):
    """A site's own rules. Fields that are lists of names restrict what is allowed; empty means every built-in one."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    methods: Names = Field((), description="Methods that this site takes part in.")
    models: Names = Field((), description="Models that this site trains.")
    benchmarks: Names = Field(EMBEDDED, description="Benchmarks of trials.")
    code: Names = Field(
        (), description="Methods, models, objectives and benchmarks of your own, as /path/file.py:Name; used by Name."
    )
    data: str | None = Field(None, description="The folder with this site's data; nothing outside is read.")
    tasks: dict[str, str] | None = Field(
        None, description="Allowed tasks and their folders or .npz files in `data`; others are refused."
    )
    weights: str | None = Field(None, description="A safetensors file with initial weights.")
    encoder: str | None = Field(None, description="Encoder of model=transformer.")
    options: Settings = Field(default_factory=dict, description="Options of the reader of a trial's benchmark.")
    device: str = Field("cpu", description="Torch device on which this site trains.")
    max_upload_megabytes: Positive = Field(2000.0, description="Larger replies do not leave the site.")
    min_group: Annotated[int, Field(ge=1)] = Field(
        1, description="Fewest samples, of a task and of each class, about which numbers leave the site."
    )
    redact_errors: bool = Field(True, description="Errors leave the site as a code and a count only.")
    server_key: str = Field("", description="Public key with which the server must sign its audit log.")

    @field_validator("tasks", mode="before")
    @classmethod
    def _same_folder(cls, given: Any) -> Any:
        """A list of tasks: each folder has the name of its task."""
        return {str(name): str(name) for name in given} if isinstance(given, list) else given

    @field_validator("code")
    @classmethod
    def _named_once(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        names = [spec.rpartition(":")[2] for spec in given]
        for spec, name in zip(given, names, strict=True):
            if not is_object_name(spec) or not is_plain_name(name):
                raise ValueError(f"{spec}: expected /path/file.py:Name")
            if names.count(name) > 1:
                raise ValueError(f"{spec}: the name {name} is given twice")
        return given

    @staticmethod
    def of_node_config(node_config: Mapping[str, Any]) -> SitePolicy:
        """The policy file that the node config names, completed by the node config's `data`."""
        file = node_config.get("policy")
        given = read_settings(Path(str(file))) if file else {}
        data = str(node_config.get("data", given.get("data", "")))
        if data and str(given.setdefault("data", data)) != data:
            raise InputError(f"data={data}: the policy {file} has data={given['data']}")
        try:
            return SitePolicy(**given)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InputError(f"policy={file}: {place}: {first['msg'].removeprefix('Value error, ')}") from None

    def check_task(self, task: str) -> None:
        if self.tasks is not None and task not in self.tasks:
            raise PolicyError(TASK_NOT_ALLOWED)

    def check_groups(self, sizes: Iterable[int]) -> None:
        """Refuse to say anything about a group of few samples; an empty group says nothing about anybody."""
        if any(0 < size < self.min_group for size in sizes):
            raise PolicyError(TOO_FEW_SAMPLES)

    def allowed(self, settings: Settings) -> Settings:
        """The server's settings with the code that its names stand for; raises `PolicyError`."""
        own = {spec.rpartition(":")[2]: spec for spec in self.code}
        found = dict(settings)
        for key in NAMED:
            if key not in found:
                continue
            name = found[key]
            listed = _listed(self, key)
            if not isinstance(name, str) or not is_plain_name(name):
                raise PolicyError(f"{key}={str(name)[:80]!r}: only a built-in name is accepted from the server")
            if name in own:
                found[key] = own[name]
            elif name not in _built_in(key):
                raise PolicyError(f"{key}={name}: neither built in nor in this site's policy")
            if listed and name not in (*listed, *own):
                raise PolicyError(f"{key}={name}: this site allows only {', '.join(listed)}")
        return found


def _listed(policy: SitePolicy, key: str) -> Sequence[str]:
    by_key = {"method": policy.methods, "model": policy.models, "benchmark": policy.benchmarks}
    return by_key.get(key, ())


def _built_in(key: str) -> Sequence[str]:
    from fedspecial import methods, objectives
    from fedspecial.data import catalogue

    if key == "model":
        from fedspecial import models  # imports torch

        return models.names()
    return {"method": methods.names, "objective": objectives.names, "benchmark": catalogue.names}[key]()
