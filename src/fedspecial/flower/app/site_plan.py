"""The part of a federation's plan that sites receive, checked: the server that sends it is not trusted.

sites, tasks            plain names; a site maps the tasks to its own folders
data                    description of the sites' data; none in a trial
settings                see `governance.site_settings`
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedspecial.config import RunSettings, Settings, given_object, resolve
from fedspecial.errors import InputError
from fedspecial.flower.app.plan import DataSpec, FederationPlan, number_of
from fedspecial.flower.governance.site_policy import SitePolicy
from fedspecial.flower.governance.site_settings import (
    PolicyError,
    check_accepted,
    check_plain_names,
    settings_for_sites,
)

_Names = Annotated[tuple[str, ...], Field(max_length=10_000)]


class SitePlan(BaseModel):
    """data: the sites' own data; None for a trial"""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sites: _Names
    tasks: _Names = ()
    data: DataSpec | None = None
    settings: dict[str, Any]

    @field_validator("sites", "tasks")
    @classmethod
    def _plain(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        check_plain_names("the plan", names)
        return names

    @staticmethod
    def of_json(text: str) -> SitePlan:
        try:
            return SitePlan.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"][:2])
            message = first["msg"].removeprefix("Value error, ")
            raise PolicyError(f"the plan of the server is not valid ({place}: {message})"[:300]) from None

    def client_number(self, site: str) -> int:
        return number_of(site, self.sites)

    def resolved(self, policy: SitePolicy) -> RunSettings:
        """The settings as this site uses them: those of the server that it accepts, and its own files and device."""
        settings = policy.allowed(self.settings)
        check_accepted(self.settings, _own_settings(settings.get("method")))
        own: Settings = {"device": policy.device, "weights": policy.weights, "encoder": policy.encoder}
        if self.data is not None:
            own |= {"benchmark": given_object("federation"), "partition": "sites"}
        else:
            own |= {"data": policy.data, "options": policy.options}
        return resolve({**settings, **own})


def plan_for_sites(plan: FederationPlan, resolved: RunSettings) -> str:
    """What the server sends, as JSON."""
    content = {
        "sites": plan.sites,
        "tasks": plan.tasks,
        "data": asdict(plan.data) if plan.data else None,
        "settings": settings_for_sites(resolved, trial=plan.data is None),
    }
    return json.dumps(content, sort_keys=True)


def _own_settings(method: Any) -> list[str]:
    from dataclasses import fields

    from fedspecial import methods

    if not isinstance(method, str):
        raise InputError("method: the server names none")
    return [field.name for field in fields(methods.find(method))]
