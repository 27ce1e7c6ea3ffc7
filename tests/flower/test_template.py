"""The app of `fedspecial flower init`: complete, accepted by Flower, secure by default."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedspecial.config import Config
from fedspecial.errors import InputError
from fedspecial.flower.app.plan import DataSpec, FederationPlan
from fedspecial.flower.app.site_plan import SitePlan, plan_for_sites
from fedspecial.flower.governance.audit import AuditLog
from fedspecial.flower.governance.policy import RoundPolicy, split_run_config
from fedspecial.flower.governance.site_policy import SitePolicy
from fedspecial.flower.governance.site_settings import VALUES
from fedspecial.flower.ops.new_app import FILES, write_app
from fedspecial.flower.ops.processes import CLOSED_NETWORK
from processes import Fork


@pytest.fixture
def app(tmp_path: Path) -> Path:
    write_app(tmp_path / "three-hospitals")
    return tmp_path / "three-hospitals"


def project(app: Path) -> dict[str, Any]:
    return tomllib.loads((app / "pyproject.toml").read_text())


def test_the_command_writes_the_app(fork: Fork, tmp_path: Path) -> None:
    done = fork("flower", "init", tmp_path / "federation")
    assert done.code == 0, done.stderr
    written = [path for path in (tmp_path / "federation").rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path / "federation").as_posix() for path in written} == set(FILES)
    assert "README.md" in done.stdout


def test_the_app_is_named_after_its_folder_and_installs_nothing(app: Path) -> None:
    assert project(app)["project"]["name"] == "three-hospitals"
    assert project(app)["project"]["dependencies"] == []


def test_all_placeholders_of_the_template_are_filled_in(app: Path) -> None:
    for file in FILES:
        assert "$name" not in (app / file).read_text()
        assert "$policy" not in (app / file).read_text()


@pytest.mark.parametrize("side", ["server", "client"])
def test_an_app_is_one_assignment(app: Path, side: str) -> None:
    """Flower looks for a plain assignment without importing the file."""
    assert project(app)["tool"]["flwr"]["app"]["components"][f"{side}app"] == f"{side}_app:app"
    *_, last = ast.parse((app / f"{side}_app.py").read_text()).body
    assert isinstance(last, ast.Assign)
    assert ast.unparse(last) == f"app = make_{side}_app()"


def test_flower_accepts_the_app(app: Path, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).parent / "flwr"), "build", "--app", str(app)]
    environment = {**os.environ, **CLOSED_NETWORK, "FLWR_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(tmp_path.glob("*.fab"))) == 1


def test_every_setting_of_the_app_is_valid(app: Path) -> None:
    """Its run config is a trial that can be started without changes, and the default policy."""
    given = project(app)["tool"]["flwr"]["app"]["config"]
    plan = FederationPlan.of_run_config(given)
    assert plan.policy == RoundPolicy()
    assert RoundPolicy().settings().items() <= given.items()
    assert plan.sites == ("north", "south", "west")
    assert plan.data is None
    assert plan.resolved().config.method == "special"
    assert plan.resolved().flat()["lam"] == 0.25


def test_a_site_reads_the_same_settings_as_the_server(app: Path) -> None:
    own = {"tasks": "ct, mr", "classes": "no,yes", "shape": "3,64,64"}
    for settings in ({}, own):
        plan = FederationPlan.of_run_config({**project(app)["tool"]["flwr"]["app"]["config"], **settings})
        received = SitePlan.of_json(plan_for_sites(plan, plan.resolved()))
        assert (received.sites, received.tasks, received.data) == (plan.sites, plan.tasks, plan.data)
        mine, theirs = plan.resolved(), received.resolved(SitePolicy())
        assert theirs.method == mine.method
        assert theirs.config.model_dump(include=VALUES) == mine.config.model_dump(include=VALUES)
    assert plan.data == DataSpec(("no", "yes"), (3, 64, 64), "image")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"sites": ""}, "sites: no site is given"),
        ({"sites": "north,north"}, "sites: 'north' is given twice"),
        ({"tasks": "ct"}, "tasks, classes, shape: give all three"),
        ({"tasks": "ct", "classes": "a,b", "shape": "3,x"}, "shape=3,x"),
        ({"kind": "sound"}, "kind=sound"),
        ({"more": "clients=7"}, "clients=7: there are 3 sites"),
        ({"more": "roundz=7"}, "roundz"),
    ],
)
def test_an_invalid_setting_of_the_plan_is_named(app: Path, settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        FederationPlan.of_run_config({**project(app)["tool"]["flwr"]["app"]["config"], **settings}).resolved()


def test_other_methods_need_only_other_settings(app: Path) -> None:
    given = {**project(app)["tool"]["flwr"]["app"]["config"], "method": "fedavg", "hyper": "", "more": "batch_size=7"}
    config = FederationPlan.of_run_config(given).resolved().config
    assert (config.method, config.batch_size) == ("fedavg", 7)


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="more: rounds=3 is given twice"):
        split_run_config({"rounds": 5, "more": "rounds=3"})
    with pytest.raises(InputError, match=r"more: quorum=0\.1 is given twice"):
        split_run_config({"more": "quorum=0.1"})
    with pytest.raises(InputError, match="more=out='a: No closing quotation"):
        split_run_config({"more": "out='a"})


def test_a_policy_shares_no_setting_with_a_run() -> None:
    assert not {field.name for field in fields(RoundPolicy)} & set(Config.model_fields)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("quorum", 0),
        ("quorum", 1.5),
        ("quorum", "half"),
        ("on_no_quorum", "shrug"),
        ("retries", -1),
        ("retries", 1.5),
        ("reply_seconds", 0),
        ("max_reply_megabytes", -2.5),
        ("max_drop", 2.0),
        ("allow_unknown", 1),
    ],
)
def test_an_invalid_setting_of_the_policy_is_named(word: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{word}={value}"):
        RoundPolicy.split_settings({word: value})


@pytest.mark.parametrize(("requested", "needed"), [(0, 1), (2, 1), (3, 2), (4, 2), (20, 10)])
def test_a_quorum_is_a_fraction_of_the_requested_sites(requested: int, needed: int) -> None:
    assert RoundPolicy(quorum=0.5).quorum_size(requested) == needed


def test_the_readme_is_secure_by_default_and_warns(app: Path) -> None:
    text = (app / "README.md").read_text()
    for word in ("--enable-supernode-auth", "--ssl-certfile", "--root-certificates", "--host 127.0.0.1"):
        assert word in text
    assert "--insecure" not in text
    assert "no authentication of its own" in text
    assert "location /v1/fleet/" in text
    for word in ("FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_folder_with_files_is_not_changed(fork: Fork, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    assert "is not an empty folder" in fork("flower", "init", folder).error_line
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["three hospitals", "3-hospitals", "h" * 33, "hospital_3"])
def test_an_app_name_that_flower_refuses_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' must start with a letter"):
        write_app(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_keys_are_created_once_and_sites_can_be_added(fork: Fork, tmp_path: Path) -> None:
    first = fork("flower", "keys", tmp_path, "--host", "link.example.org", "--node", "north")
    assert first.code == 0, first.stderr
    made = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {str(path.relative_to(tmp_path)) for path in made} == {
        *("authority/ca.key", "authority/ca.pem", "server/ca.pem", "server/server.pem", "server/server.key"),
        *("north/north", "north/north.pub", "north/ca.pem"),
    }
    assert [path for path in tmp_path.iterdir() if path.stat().st_mode & 0o077] == []
    assert fork("flower", "keys", tmp_path, "--node", "south").code == 0
    assert {path.name for path in (tmp_path / "south").iterdir()} == {"ca.pem", "south", "south.pub"}
    assert all(path.read_bytes() == data for path, data in made.items())
    assert (
        "--node server: the name of another folder" in fork("flower", "keys", tmp_path, "--node", "server").error_line
    )
    assert "north: the file exists already" in fork("flower", "keys", tmp_path, "--node", "north").error_line


BLOCKED = """
import sys
sys.modules["flwr"] = sys.modules["torch"] = sys.modules["cryptography"] = None
from fedspecial.cli.main import main
sys.argv = ["fedspecial", *sys.argv[1:]]
main()
"""


def blocked(*settings: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", BLOCKED, *map(str, settings)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_help_init_and_audit_need_neither_flower_nor_torch(tmp_path: Path) -> None:
    assert blocked("flower", "--help").returncode == 0
    assert blocked("flower", "init", tmp_path / "app").returncode == 0
    AuditLog(tmp_path / "audit.jsonl").append("note", {})
    assert blocked("flower", "audit", tmp_path / "audit.jsonl").returncode == 0
    assert "not the run directory of a federation" in blocked("flower", "next-task", tmp_path).stderr


def test_without_flower_one_line_says_how_to_install_it(tmp_path: Path) -> None:
    done = blocked("flower", "keys", tmp_path)
    assert done.returncode == 2
    assert done.stderr == 'Error: flwr: Flower is not installed; install it with: pip install "fedspecial[flower]"\n'
    code = "import sys; sys.modules['flwr'] = None; from fedspecial.flower import SpecialStrategy"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert 'pip install "fedspecial[flower]"' in done.stderr.splitlines()[-1]
