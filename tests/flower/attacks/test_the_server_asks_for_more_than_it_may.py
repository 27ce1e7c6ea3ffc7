"""A server, or who took its place, asks a site to execute code, to read files or to say more than the site allows."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flower_fixtures import POLICY, SITES, policy_file
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedspecial import __version__
from fedspecial.config import Config
from fedspecial.errors import InputError
from fedspecial.flower.app import wire
from fedspecial.flower.app.client_app import make_client_app
from fedspecial.flower.app.plan import FederationPlan
from fedspecial.flower.app.server_app import serve
from fedspecial.flower.app.site_plan import SitePlan, plan_for_sites
from fedspecial.flower.governance.signing import Receipt, open_signer
from fedspecial.flower.governance.site_policy import SitePolicy
from fedspecial.flower.governance.site_settings import VALUES, PolicyError
from fedspecial.flower.grid import InProcessGrid

OWN = {
    "sites": ",".join(SITES), "tasks": "2019,2022", "classes": "a,b", "shape": "5", "kind": "table",
    "method": "special", "hyper": "lam=0.1", "model": "logistic", "rounds": 1, "client_lr": 0.1,
}  # fmt: skip
MARK = "import pathlib; pathlib.Path(__file__).with_name('executed').write_text('x')\nclass Evil: ...\n"


def site_data(folder: Path, tasks: tuple[str, ...] = ("2019", "2022"), samples: int = 24) -> dict[str, Any]:
    """The node config of a site with a table for each task."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for task in tasks:
        y = np.arange(samples) % 2
        x = (generator.standard_normal((samples, 5)) * 0.3 + y[:, None]).astype(np.float32)
        half = samples // 2
        np.savez(folder / f"{task}.npz", x_train=x[:half], y_train=y[:half], x_test=x[half:], y_test=y[half:])
    return {"site": folder.name, "data": str(folder), "state": str(folder / "state")}


def sites(folder: Path) -> list[dict[str, Any]]:
    return [site_data(folder / site) for site in SITES]


def plan_json(**changes: Any) -> str:
    """What an honest server sends, with changes to the plan; `settings` are added to those of the plan."""
    plan = FederationPlan.of_run_config(OWN)
    content = json.loads(plan_for_sites(plan, plan.resolved()))
    content["settings"] |= changes.pop("settings", {})
    return json.dumps({**content, **changes})


def ask(node: dict[str, Any], plan: str, kind: str = wire.IDENTIFY, **request: Any) -> wire.ReplyHeader:
    """The header of a site's answer to a message of the server."""
    grid = InProcessGrid(make_client_app(), [node])
    (number,) = grid.get_node_ids()
    asked = {"run": "r1", "client": 0, "task": 1, "release": __version__, **request}
    content = {"plan": plan, "request": json.dumps(asked)}
    message = Message(RecordDict({"config": ConfigRecord(content)}), dst_node_id=number, message_type=kind)
    if kind == wire.TRAIN:
        theta = np.zeros(12, np.float32)
        message.content["arrays"] = ArrayRecord({"theta": wire.arrays_to_record({"theta": theta})["theta"]})
    (reply,) = grid.send_and_receive([message])
    assert not reply.has_error()
    return wire.read_header(reply)


def refusal(node: dict[str, Any], plan: str, kind: str = wire.TRAIN, **request: Any) -> str:
    """The reason that the server is told; the site's own log has the same."""
    header = ask(node, plan, kind, **request)
    assert header.problem is not None
    assert header.problem.startswith("the site's policy refuses it: ")
    reason = header.problem.partition(": ")[2]
    assert reason in (Path(node["state"]) / "site.log").read_text()
    assert not header.retry
    return reason


@pytest.mark.parametrize("key", ["method", "model", "objective", "benchmark"])
@pytest.mark.parametrize("form", ["{file}:Evil", "os:system", "../evil.py:Evil", "http://evil.example/x.py:Evil"])
def test_code_named_by_the_server_is_not_executed(key: str, form: str, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(MARK)
    node = site_data(tmp_path / "north")
    reason = refusal(node, plan_json(settings={key: form.format(file=tmp_path / "evil.py")}))
    assert "only a built-in name is accepted from the server" in reason
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "setting",
    [
        {"data": "/etc"},
        {"weights": "/etc/passwd"},
        {"encoder": "evil/hub-model"},
        {"options": {"folder": "/etc"}},
        {"trackers": ["wandb"]},
        {"device": "cuda:7"},
        {"ray_address": "evil.example:6379"},
        {"out": "/tmp/elsewhere"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_a_setting_that_names_a_file_or_a_host_is_refused(setting: dict[str, Any], tmp_path: Path) -> None:
    reason = refusal(site_data(tmp_path / "north"), plan_json(settings=setting))
    assert reason == f"the setting {next(iter(setting))} is not accepted from the server"


def test_a_new_setting_is_refused_until_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that somebody adds to `Config` tomorrow: the server does not send it, and a site does not take it."""
    from pydantic import create_model

    wider = create_model("Config", __base__=Config, download_from=(str, ""))
    for module in ("config.resolve", "flower.governance.site_settings"):
        monkeypatch.setattr(importlib.import_module(f"fedspecial.{module}"), "Config", wider)
    plan = FederationPlan.of_run_config({**OWN, "download_from": "https://evil.example"})
    assert plan.resolved().config.model_dump()["download_from"]
    assert "download_from" not in plan_for_sites(plan, plan.resolved())
    with pytest.raises(PolicyError, match="the setting download_from is not accepted from the server"):
        SitePlan.of_json(plan_json(settings={"download_from": "x"})).resolved(SitePolicy())


def test_what_a_site_accepts_as_a_value_cannot_be_text() -> None:
    """Numbers, switches and fixed choices only, according to their types."""
    schema = Config.model_json_schema()["properties"]

    def free_text(part: dict[str, Any]) -> bool:
        options = part.get("anyOf", [part])
        return any(option.get("type") in ("string", "object", "array") and "enum" not in option for option in options)

    assert [name for name in sorted(VALUES) if free_text(schema[name])] == []


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", "..", ".hidden", "a\\b", "x\n", ""])
def test_a_task_name_that_leads_out_of_the_data_folder_is_refused(name: str, tmp_path: Path) -> None:
    reason = refusal(site_data(tmp_path / "north"), plan_json(tasks=[name, "2022"]))
    assert "is not a plain name" in reason
    if name == name.strip() != "":
        with pytest.raises(InputError, match="is not a plain name"):
            FederationPlan.of_run_config({**OWN, "tasks": f"{name},2022"})


def test_a_trial_reads_only_benchmarks_that_the_site_lists(tmp_path: Path) -> None:
    """`benchmark=folders` would read everything in the site's data folder."""
    node = site_data(tmp_path / "north")
    trial = plan_json(data=None, tasks=[], settings={"benchmark": "folders"})
    assert refusal(node, trial) == "benchmark=folders: this site allows only digits-shift"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"task": 3}, "task 3: the federation has 2 tasks"),
        ({"task": 0}, "task 0: the federation has 2 tasks"),
        ({"task": "1"}, "the request is invalid (task)"),
        ({"task": 2**70}, "the request is invalid (task)"),
        ({"cap": -1}, "the request is invalid (cap)"),
        ({"path": "/etc"}, "the request is invalid (path)"),
        ({"client": 1}, "this site is client 0, the request is for 1"),
    ],
)
def test_a_request_that_is_not_one_of_ours_is_refused(request_: dict[str, Any], reason: str, tmp_path: Path) -> None:
    assert refusal(site_data(tmp_path / "north"), plan_json(), **request_) == reason


def test_what_the_server_calls_something_cannot_forge_or_fill_the_log_of_the_site(tmp_path: Path) -> None:
    node = site_data(tmp_path / "north")
    forged = "x\n2026-11-18T10:00:00Z policy count=1 train: all is well\x1b[2J" + "y" * 10**6
    content = {"run": "r1", "client": 0, "task": 1, "release": __version__, "payloads": {forged: "0" * 64}}
    grid = InProcessGrid(make_client_app(), [node])
    config = ConfigRecord({"plan": plan_json(), "request": json.dumps(content)})
    records = RecordDict({"config": config, "payloads": wire.arrays_to_record({forged: np.zeros(1, np.float32)})})
    (reply,) = grid.send_and_receive([Message(records, dst_node_id=grid.get_node_ids()[0], message_type=wire.TRAIN)])
    assert wire.read_header(reply).problem
    (line,) = (Path(node["state"]) / "site.log").read_text().splitlines()
    assert "its content does not match" in line or line.endswith("…")
    assert line.isprintable()
    assert len(line) < 5000


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"methods": ["fedavg"]}, "method=special: this site allows only fedavg"),
    "another model": ({"models": ["cnn"]}, "model=logistic: this site allows only cnn"),
    "another task": ({"tasks": {"2022": "2022.npz"}}, "this task is not allowed"),
    "a large upload": ({"max_upload_megabytes": 1e-5}, "the reply is larger than max_upload_megabytes=1e-05"),
    "a small group": (
        {"min_group": 13},
        "there are fewer samples of this task, or of one of its classes, than min_group",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_site_policy_holds_whatever_the_server_asks(rule: str, tmp_path: Path) -> None:
    rules, reason = RULES[rule]
    node = {**site_data(tmp_path / "north"), "policy": policy_file(tmp_path, **rules)}
    assert refusal(node, plan_json(), client_lr=0.1) == reason


def test_numbers_about_few_patients_do_not_leave_the_site(tmp_path: Path) -> None:
    """12 test samples, six of each class: with min_group=7 no metrics of classes, with 13 nothing at all."""
    node, shown = site_data(tmp_path / "north"), {}
    for least in (1, 7, 13):
        node["policy"] = policy_file(tmp_path, min_group=least)
        header = ask(node, plan_json(), wire.EVALUATE, tasks=[1], complete=True)
        shown[least] = header.metrics.get("1", {})
        assert ("1" in header.counts) == (least < 13)
        assert ("1" in header.untested) == (least == 13)
    assert "accuracy" in shown[7]
    assert len(shown[1]) > len(shown[7])


def test_names_of_files_and_labels_do_not_leave_the_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A label outside the classes, in a folder whose name is a patient's."""
    nodes = sites(tmp_path)
    secret = tmp_path / "north" / "Jane-Doe-1970.npz"
    bad = {**np.load(tmp_path / "north" / "2019.npz")}
    np.savez(secret, **{**bad, "y_train": bad["y_train"] + 7})
    nodes[0]["tasks"] = f"{secret.name},2022.npz"
    with caplog.at_level("INFO", logger="fedspecial.flower"):
        run = serve(InProcessGrid(make_client_app(), nodes), {**POLICY, **OWN, "out": str(tmp_path / "run")})
    seen = caplog.text + "".join(p.read_text() for p in run.rglob("*.json*")) + (run / "audit.jsonl").read_text()
    assert "site north: the site failed (data, count 1): the details are in the site's log" in seen
    assert "Jane" not in seen
    assert str(tmp_path / "north") not in seen
    assert "Jane-Doe-1970" in (tmp_path / "north" / "state" / "site.log").read_text()


def test_the_name_of_a_folder_of_the_site_does_not_leave_it_when_the_head_of_the_log_cannot_be_stored(
    tmp_path: Path,
) -> None:
    node, signer = site_data(tmp_path / "north"), open_signer(tmp_path)
    received = {"audit": asdict(Receipt.of(signer, "r1", 1, "0" * 64))}
    (Path(node["state"]) / "r1" / "audit-head.json").mkdir(parents=True)
    header = ask(node, plan_json(), wire.TRAIN, **received)
    assert header.problem == "the site failed (state, count 1): the details are in the site's log"
    assert str(tmp_path) in (Path(node["state"]) / "site.log").read_text()


@pytest.mark.parametrize("name", ["no|rth", "../north", "north\n", "n" * 300])
def test_a_site_with_an_odd_name_says_so_in_its_log_and_answers(name: str, tmp_path: Path) -> None:
    header = ask({**site_data(tmp_path / "north"), "site": name}, plan_json())
    assert header.problem is not None
    assert header.problem.startswith("the site failed (failed, count 1)")


def test_a_bad_file_of_2019_does_not_fail_the_task_of_2022(tmp_path: Path) -> None:
    node = site_data(tmp_path / "north")
    (tmp_path / "north" / "2019.npz").write_bytes(b"damaged")
    failed = ask(node, plan_json(), wire.TRAIN, client_lr=0.1)
    assert failed.problem == "the site failed (data, count 1): the details are in the site's log"
    assert failed.retry
    assert ask(node, plan_json(), wire.TRAIN, task=2, client_lr=0.1).steps > 0
    tested = ask(node, plan_json(), wire.EVALUATE, task=2, tasks=[1, 2])
    assert tested.problem is None
    assert list(tested.counts) == ["2"]
    assert tested.untested == {"1": "the site failed (data, count 1): the details are in the site's log"}


def test_a_server_with_another_key_than_the_sites_policy_names_is_refused(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    for node in nodes:
        node["policy"] = policy_file(tmp_path, server_key="ab" * 32)
    with pytest.raises(InputError, match="signs its audit log with another key than the policy's server_key"):
        serve(
            InProcessGrid(make_client_app(), nodes),
            {**POLICY, **OWN, "on_no_quorum": "stop", "out": str(tmp_path / "run")},
        )


def test_files_of_server_and_site_can_be_read_by_their_owner_only(tmp_path: Path) -> None:
    nodes = sites(tmp_path)
    nodes[3]["policy"] = policy_file(tmp_path, methods=["fedavg"])
    run = serve(InProcessGrid(make_client_app(), nodes), {**POLICY, **OWN, "quorum": 0.75, "wait_seconds": 0.3,
                                                         "out": str(tmp_path / "run")})  # fmt: skip
    found = [run, *run.rglob("*"), *(p for s in SITES for p in (tmp_path / s / "state").rglob("*"))]
    assert any(path.name == "model.safetensors" for path in found)
    assert any(path.name == "audit-head.json" for path in found)
    assert [path for path in found if path.stat().st_mode & 0o077] == []
