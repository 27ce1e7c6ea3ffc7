"""The same loop over Flower: with the same seed and data, every method trains the same model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_fixtures import POLICY, SHORT, SITES, federate, finished, grid_of, rounds_of, settings_of, with_header
from flwr.app import Message

from fedspecial import methods
from fedspecial.core.events import RoundFinished, of_kind, read_events
from fedspecial.data import catalogue
from fedspecial.errors import InputError
from fedspecial.flower.app.client_app import make_client_app
from fedspecial.flower.app.server_app import serve
from fedspecial.flower.app.task_control import request_task_end
from fedspecial.flower.app.wire import read_request
from fedspecial.flower.governance.audit import verify
from fedspecial.flower.grid import Delivery, InProcessGrid, late
from fedspecial.flower.strategy.clipping import clipping_mod
from processes import Fork
from toy_problems import learn_settings

pytestmark = pytest.mark.usefixtures("rendered", "unpictured")


@pytest.fixture(scope="module")
def undisturbed(rendered: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """finished.json of a federation without faults, computed once per method."""
    known: dict[str, dict[str, Any]] = {}

    def result(method: str = "special") -> dict[str, Any]:
        if method not in known:
            known[method] = finished(federate(tmp_path_factory.mktemp(method), method))
        return known[method]

    return result


@pytest.mark.parametrize("method", [name for name in methods.names() if not methods.find(name).simulation_only])
def test_the_model_is_that_of_one_process_bit_for_bit(method: str, undisturbed: Any, tmp_path: Path) -> None:
    alone = learn_settings(tmp_path / "alone", **settings_of(method), clients=len(SITES))
    assert undisturbed(method)["model_sha256"] == alone.model_sha256
    assert undisturbed(method)["refusals"] == {}
    if not methods.find(method).personal:
        assert undisturbed(method)["matrix"] == alone.matrix


@pytest.mark.parametrize("settings", [{"batch_norm": "bank"}, {"batch_norm": "local"}, {"weighting": "samples"}])
def test_with_these_settings_the_model_is_that_of_one_process(settings: dict[str, str], tmp_path: Path) -> None:
    other = {"model": "resnet18", "width": 4, "batch_size": 16, **settings}
    run = federate(tmp_path, "fedavg", **SHORT, **other)
    alone = learn_settings(tmp_path / "alone", **{**settings_of("fedavg"), **SHORT, **other}, clients=len(SITES))
    assert finished(run)["model_sha256"] == alone.model_sha256


@pytest.mark.parametrize(
    "settings", [{"aggregation": "median", "clip_norm": 0.05}, {"aggregation": "geometric-median"}]
)
def test_a_robust_mean_is_that_of_one_process(settings: dict[str, Any], tmp_path: Path) -> None:
    run = federate(tmp_path, **SHORT, **settings, quorum=1.0)
    alone = learn_settings(tmp_path / "alone", **{**settings_of("special"), **SHORT, **settings}, clients=len(SITES))
    assert finished(run)["model_sha256"] == alone.model_sha256


def test_a_quorum_that_is_too_small_for_the_aggregation_is_refused_at_the_start(tmp_path: Path) -> None:
    message = "quorum=0.5: a round could end with 2 replies, but aggregation=median needs 3; give a larger quorum"
    with pytest.raises(InputError, match=message):
        federate(tmp_path, **SHORT, aggregation="median")
    assert not (tmp_path / "run").exists()


def test_a_growing_head_grows_at_the_sites_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class-incremental: at the start of a task, the layout changes, and with it client states and vectors."""
    load = catalogue.load

    def by_classes(*args: Any, **settings: Any) -> Any:
        found = load(*args, **settings)
        halves = []
        for number, domain in enumerate(found.domains):
            low, high = 5 * number, 5 * number + 5
            keep = {part: (s.y >= low) & (s.y < high) for part, s in (("train", domain.train), ("test", domain.test))}
            parts = {part: getattr(domain, part).take(mask.nonzero().flatten()) for part, mask in keep.items()}
            halves.append(replace(domain, **parts))
        return replace(found, domains=tuple(halves), incremental="class")

    monkeypatch.setattr(catalogue, "load", by_classes)
    settings = {"cap": 160, "min_per_client": 2}
    over_flower = finished(federate(tmp_path, "flwf2t", **settings))
    alone = learn_settings(tmp_path / "alone", **{**settings_of("flwf2t"), **settings}, clients=len(SITES))
    assert over_flower["model_sha256"] == alone.model_sha256
    assert over_flower["matrix"] == alone.matrix


@pytest.mark.parametrize("method", ["special", "fedcil"])
def test_the_order_of_arrival_does_not_matter(method: str, undisturbed: Any, tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    first, second, *_ = grid.get_node_ids()
    grid.faults = {first: late(2), second: late(1)}
    run = federate(tmp_path, method, grid, reply_seconds=60.0)
    assert finished(run)["model_sha256"] == undisturbed(method)["model_sha256"]


class Crash(BaseException):
    pass


def crash_after(task: int, round: int) -> Callable[[Any], None]:
    def crash(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (task, round):
            raise Crash

    return crash


@pytest.mark.parametrize("method", ["flwf2t", "srfdil", "mfcl", "pfeddil"])
def test_after_a_server_crash_the_final_model_is_the_same(method: str, undisturbed: Any, tmp_path: Path) -> None:
    """Sites keep the client states of the last checkpoint until the server has written the next one."""
    grid = grid_of(tmp_path)
    for when in ((1, 1), (2, 0)):
        with pytest.raises(Crash):
            federate(tmp_path, method, grid, (crash_after(*when),))
    run = federate(tmp_path, method, grid)
    assert finished(run)["model_sha256"] == undisturbed(method)["model_sha256"]
    attempts = [(line["task"], line["round"], line["attempt"]) for line in rounds_of(run)]
    assert attempts == [(1, 0, 1), (1, 1, 1), (1, 1, 2), (2, 0, 1), (2, 0, 2), (2, 1, 1)]
    assert verify(run / "audit.jsonl", finished(run)["audit_head"]).intact


def clipped_grid(folder: Path, limit: float) -> InProcessGrid:
    grid = grid_of(folder)
    grid.app = make_client_app(mods=[clipping_mod(limit)])
    return grid


@pytest.mark.parametrize("method", ["special", "special-c"])
def test_updates_of_our_engine_can_be_clipped_at_the_site(method: str, tmp_path: Path) -> None:
    """Also if the message contains a payload, such as SPECIAL-C's anchor."""
    run = federate(tmp_path, method, clipped_grid(tmp_path, 0.01))
    norms = [update["norm"] for line in rounds_of(run) for update in line["updates"]]
    assert len(norms) == 12
    assert all(norm == pytest.approx(0.01, rel=1e-3) for norm in norms)


def test_a_limit_above_all_updates_changes_nothing(undisturbed: Any, tmp_path: Path) -> None:
    run = federate(tmp_path, "special", clipped_grid(tmp_path, 1e6))
    assert finished(run)["model_sha256"] == undisturbed()["model_sha256"]


def test_a_method_without_client_state_stores_none_at_the_sites(tmp_path: Path) -> None:
    """So a site whose disk was erased can continue."""
    federate(tmp_path, "special", **SHORT)
    assert not list(tmp_path.glob("site-*/*/states/*"))


def test_a_finished_run_is_not_repeated(undisturbed: Any, tmp_path: Path) -> None:
    run = federate(tmp_path, **SHORT)
    before = (run / "audit.jsonl").read_bytes()
    assert federate(tmp_path, **SHORT) == run
    assert (run / "audit.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"seed": 26}, "it contains a run with seed=25, not seed=26"),
        (
            {"sites": "south,north,west,east"},
            "it contains a run with sites=north,south,west,east, not sites=south,north",
        ),
    ],
)
def test_another_run_in_the_same_folder_is_refused(settings: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        federate(tmp_path, listeners=(crash_after(1, 0),))
    config = {**settings_of("special"), **POLICY, "sites": ",".join(SITES), "out": str(tmp_path / "run"), **settings}
    with pytest.raises(InputError, match=complaint):
        serve(grid_of(tmp_path), config)


def test_a_federation_of_an_older_format_is_refused_with_its_version(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        federate(tmp_path, listeners=(crash_after(1, 0),))
    path = tmp_path / "run" / "federation.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "format"}))
    with pytest.raises(
        InputError, match="a federation of format 1; this version of fedspecial reads the formats 2 and 3"
    ):
        federate(tmp_path)


def test_a_refused_run_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="model=spaceship"):
        federate(tmp_path, model="spaceship")
    assert not (tmp_path / "run").exists()
    federate(tmp_path, **SHORT)
    kept = (tmp_path / "run" / "audit.jsonl").read_bytes()
    with pytest.raises(InputError, match="seed"):
        federate(tmp_path, **SHORT, seed=26)
    assert (tmp_path / "run" / "audit.jsonl").read_bytes() == kept


def test_a_site_that_lost_a_payload_receives_it_again(undisturbed: Any, tmp_path: Path) -> None:
    def forget(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 0):
            held = list(tmp_path.glob("site-*/*/payloads/*"))
            assert held
            for path in held:
                path.unlink()

    run = federate(tmp_path, "special-c", listeners=(forget,))
    assert finished(run)["model_sha256"] == undisturbed("special-c")["model_sha256"]


def test_the_operator_may_end_a_task_early(fork: Fork, tmp_path: Path) -> None:
    def request_end(event: Any) -> None:
        if isinstance(event, RoundFinished) and (event.task, event.round) == (1, 0):
            assert request_task_end(tmp_path / "run") == 1

    run = federate(tmp_path, listeners=(request_end,))
    rounds = of_kind(read_events(run / "events.jsonl"), "round")
    assert [(r["task"], r["round"]) for r in rounds] == [(1, 0), (2, 0), (2, 1)]
    assert "the run is finished" in fork("flower", "next-task", run).error_line
    assert "not the run directory of a federation" in fork("flower", "next-task", tmp_path).error_line


def forgetful(request: Any, reply: Any) -> list[Delivery]:
    """After the second task, this site reports no correct prediction on the first one."""
    if request.metadata.message_type == "evaluate" and read_request(request)[1].task == 2:
        header = json.loads(reply.content["config"]["reply"])
        header["counts"]["1"][0] = 0
        reply.content["config"]["reply"] = json.dumps(header)
    return [Delivery(reply)]


def test_a_model_whose_accuracy_dropped_on_an_earlier_domain_is_not_published(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.faults = {grid.get_node_ids()[3]: forgetful}
    run = federate(tmp_path, grid=grid, max_site_drop=0.0)
    assert (run / "published" / "task-1" / "model.safetensors").exists()
    assert not (run / "published" / "task-2").exists()
    decision = json.loads((run / "promotion" / "task-2.json").read_text())
    matrix = finished(run)["matrix"]
    assert decision["domains"][0]["drop"] == pytest.approx(matrix[0][0] - matrix[1][0])
    assert decision["reason"].startswith("not published: paper: accuracy dropped by")


def own_data(folder: Path) -> list[dict[str, str]]:
    """Node configs of four sites with their own tables; east has no data of the second task."""
    generator = torch.Generator().manual_seed(0)
    for number, site in enumerate(SITES):
        (folder / site).mkdir()
        for task, shift in (("first", 0.0), ("second", 1.0)):
            if (site, task) != ("east", "second"):
                y = torch.arange(24) % 2
                x = torch.randn(24, 5, generator=generator) * 0.3 + y[:, None] * 2 + shift + 0.01 * number
                parts = {"x_train": x[:16], "y_train": y[:16], "x_test": x[16:], "y_test": y[16:]}
                np.savez(folder / site / f"{task}.npz", **parts)
    nodes = [{"site": s, "data": str(folder / s), "state": str(folder / s / "state")} for s in SITES]
    nodes[1] |= {"tasks": "first.npz,second.npz"}
    return nodes


OWN = {
    "sites": ",".join(SITES), "tasks": "first,second", "classes": "a,b", "shape": "5", "kind": "table",
    "method": "special", "hyper": "lam=0.1", "model": "logistic", "rounds": 3, "client_lr": 0.1,
}  # fmt: skip


def test_a_site_without_samples_of_a_task_gets_one_request_in_it(tmp_path: Path) -> None:
    """It does not count for the quorum either."""
    grid = InProcessGrid(make_client_app(), own_data(tmp_path))
    run = serve(grid, {**POLICY, **OWN, "quorum": 1.0, "out": str(tmp_path / "run")})
    assert finished(run)["matrix"][1][0] > 0.7
    assert finished(run)["refusals"] == {"east": 1}
    refused = of_kind(read_events(run / "events.jsonl"), "update_refused")
    assert {(r["task"], r["client"], r["reason"]) for r in refused} == {(2, 3, "it holds no samples of this task")}
    assert [len(line["requested"]) for line in rounds_of(run)] == [4, 4, 4, 4, 3, 3]
    assert {line["outcome"] for line in rounds_of(run)} == {"completed"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"data": "/nowhere"}, "data=/nowhere: the folder does not exist"),
        ({"tasks": "first.npz,gone.npz"}, "task 'second': .*gone.npz does not exist"),
        ({"tasks": "first.npz,../x.npz"}, r"task 'second': \.\./x.npz is not in data="),
        ({"site": "nord"}, "site=nord: not a site of this federation"),
    ],
)
def test_a_wrong_configuration_of_a_site_is_refused_at_the_start_and_the_details_stay_there(
    change: dict[str, str], complaint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = own_data(tmp_path)
    nodes[2] |= change
    run = {**POLICY, **OWN, "quorum": 1.0, "wait_seconds": 0.3, "out": str(tmp_path / "run")}
    with (
        caplog.at_level("WARNING", logger="fedspecial.flower"),
        pytest.raises(InputError, match=r"wait_seconds=0\.3: only 3 sites connected, a round needs 4"),
    ):
        serve(InProcessGrid(make_client_app(), nodes), run)
    (site,) = {change.get("site", "west")}
    code = "failed" if "site" in change else "data"
    text = f"node {site} refused: the site failed ({code}, count 1): the details are in the site's log"
    assert text in caplog.messages
    assert not any(re.search(complaint, message) for message in caplog.messages)
    assert re.search(complaint, (tmp_path / "west" / "state" / "site.log").read_text())


OBJECTIVES = Path(__file__).parents[1] / "objective_problems.py"
LINES = {"benchmark": f"{OBJECTIVES}:lines", "domains": "d1,d2", "model": "logistic", "width": None, "cap": None}


@pytest.mark.parametrize("objective", ["regression", f"{OBJECTIVES}:OWN"], ids=["regression", "own"])
def test_another_objective_trains_the_model_of_one_process(objective: str, tmp_path: Path) -> None:
    short: dict[str, Any] = {"rounds": 1, "partition": "iid", "min_per_client": 4, "client_lr": 0.1, "local_epochs": 2}
    given = {**LINES, **short, "objective": objective, "clients_per_round": len(SITES)}
    given = {key: value for key, value in given.items() if value is not None}
    code = [spec for spec in (given["benchmark"], objective) if ":" in spec]
    rest = {**POLICY, "method": "special", "sites": ",".join(SITES), "lam": 0.1, "out": str(tmp_path / "run")}
    federation = finished(serve(grid_of(tmp_path, code=code), {**given, **rest}))
    alone = learn_settings(tmp_path / "alone", **given, method="special", lam=0.1, clients=len(SITES))
    assert federation["model_sha256"] == alone.model_sha256
    assert federation["refusals"] == {}
    if objective != "regression":  # a mean over samples is the same over sites; R² depends on the variance at a site
        assert np.array(federation["matrix"]) == pytest.approx(np.array(alone.matrix))
    card = (tmp_path / "run" / "published" / "task-1" / "README.md").read_text()
    assert "%" not in card


def test_a_metric_outside_its_range_counts_for_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """R² is at most 1: a site that claims 10^30 would have every model published."""
    short: dict[str, Any] = {"rounds": 1, "partition": "iid", "min_per_client": 4, "client_lr": 0.1, "domains": "d1"}
    given = {**LINES, **short, "objective": "regression", "clients_per_round": len(SITES), "method": "special"}
    given = {key: value for key, value in given.items() if value is not None}
    rest = {**POLICY, "sites": ",".join(SITES), "min_accuracy": 0.99, "out": str(tmp_path / "run")}
    grid = grid_of(tmp_path, code=[LINES["benchmark"]])

    def boast(request: Message, reply: Message) -> list[Delivery]:
        if request.metadata.message_type == "evaluate":
            with_header(metrics={"1": {"r2": 1e30}})(reply)
        return [Delivery(reply)]

    grid.faults = {grid.get_node_ids()[2]: boast}
    with caplog.at_level("WARNING", logger="fedspecial.flower"):
        run = serve(grid, {**given, **rest})
    assert "site west: task 1: it claims r2=1e+30, which is outside −∞…1.0" in caplog.messages
    assert finished(run)["matrix"][0][0] < 1
    assert not (run / "published").exists()
    scores = json.loads((run / "promotion-history.json").read_text())["d1"]["d1"]
    assert set(scores) == {"north", "south", "east"}
