"""`fedspecial theory`: output, and one-line error messages."""

import json

import pytest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GOLDEN = [
    "clients=8", "clients_per_round=4", "local_steps=5", "rounds=20", "task=4", "server_lr=1/i", "client_lr=0.001",
    "lam=0.25", "grad_bound=2", "smoothness=4", "sigma_local=1", "sigma_client=1", "sigma_task=1.5",
    "old_grad_norm=0.3", "alignment=0.5", "gap=3",
]  # fmt: skip
RUN = """
clients: 8
clients_per_round: 4
rounds: 20
local_epochs: 5
local_steps: null
batch_size: 32
client_lr: 0.001
server_lr: 1/i
model: resnet18
method: special
lam: 0.25
"""


def call(*arguments):
    from typer.testing import CliRunner

    from fedspecial.cli.theory import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def config(tmp_path):
    (tmp_path / "config.yaml").write_text(RUN)
    return tmp_path / "config.yaml"


def test_bounds_prints_every_value_and_every_term_of_psi():
    rows = {row["name"]: row["value"] for row in json.loads(call("bounds", *GOLDEN, "--json").stdout)}
    assert rows["Psi"] == pytest.approx(43.42876411428572, rel=1e-12)
    assert sum(value for name, value in rows.items() if name.startswith("Psi:")) == pytest.approx(rows["Psi"])
    assert rows["total"] == pytest.approx(300.13731136)
    assert "every_iterate_cap" in call("bounds", *GOLDEN).stdout


def test_bounds_names_what_is_missing_instead_of_guessing():
    rows = {row["name"]: row for row in json.loads(call("bounds", "lam=0.25", "--json").stdout)}
    assert rows["half_life"]["value"] > 3
    assert rows["drift_radius"]["value"] is None
    assert "grad_bound" in rows["drift_radius"]["note"]
    assert all(row["value"] is None for name, row in rows.items() if name != "half_life")


def test_check_ignores_other_settings_of_a_run_and_passes_no_condition_silently(config):
    reports = json.loads(call("check", config, "task=4", "--json").stdout)
    assert all(report["ok"] is not True for report in reports)
    text = call("check", config.parent, "task=4").stdout
    assert "local_steps is unknown" in text
    assert "needs local_steps, smoothness" in text


def test_check_derives_steps_from_samples_and_suggests_limits(config):
    settings = (
        "samples_per_client=100",
        "grad_bound=2",
        "smoothness=4",
        "old_grad_norm=0.3",
        "alignment=0.5",
        "task=4",
    )
    text = call("check", config, *settings).stdout
    assert "local_steps = 20, from 100 samples in batches of 32, 5 epochs" in text
    assert "client_lr at most" in text
    assert "lam at least" in text
    assert "needed by the proof, not in the statement" in text


def test_check_says_that_a_first_task_has_no_anchor(config):
    assert "the first task has no anchor" in call("check", config, "task=1").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bounds", "smoothnes=4"], "did you mean 'smoothness'?"),
        (["bounds", "lam"], "key=value"),
        (["bounds"], "key=value"),
        (["bounds", "lam=-1"], "lam must be at least 0, got -1"),
        (["bounds", "lam=much"], "lam must be a number, got 'much'"),
        (["bounds", "clients=2", "clients_per_round=3"], "clients_per_round must be at most num_clients=2, got 3"),
        (["bounds", "rounds=1.5"], "rounds"),
        (["check", "nowhere.yaml"], "nowhere.yaml: cannot be read (No such file"),
        (["study", "lamb"], "did you mean 'lam'?"),
        (["study", "lam", "--problem", "cubic"], "cubic"),
        (["certify", "nowhere"], "No such file"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.output


def test_check_rejects_a_file_that_is_not_a_mapping(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    result = call("check", tmp_path / "list.yaml")
    assert result.exit_code == 2
    assert "expected lines of" in result.stderr


@pytest.mark.usefixtures("drawn_figures")
def test_study_writes_table_and_plot_and_prints_its_slope(tmp_path):
    result = call("study", "epochs", "--out", tmp_path, "--repeats", 2)
    assert result.exit_code == 0
    assert "study epochs: 7 of 7" in result.stdout
    assert "drift cap: slope 1.000" in result.stdout
    assert (tmp_path / "theory-epochs.png").stat().st_size > 10_000
    assert (tmp_path / "theory-epochs.csv").read_text().startswith("curve,x,value,stderr,exact")
    assert json.loads((tmp_path / "theory-epochs.json").read_text())["sweep"] == "epochs"


def _run_folder(tmp_path, drift):
    same = {"event": "round", "task": 2, "server_lr": 1.0, "client_lr": 0.1, "mean_steps": 5, "lam": 1.0}
    seen = {"delta_norm": 1.0, "max_client_delta": 1.0, "drift": drift, "num_accepted": 4}
    lines = "\n".join(json.dumps({**same, **seen, "round": t}) for t in range(3))
    (tmp_path / "events.jsonl").write_text(lines + '\n{"event": "rou')  # killed while writing
    return tmp_path


@pytest.mark.usefixtures("drawn_figures")
def test_certify_reads_and_plots_a_run(tmp_path):
    result = call("certify", _run_folder(tmp_path, 0.5), "--plot", tmp_path / "drift.png")
    assert result.exit_code == 0
    assert "task 2: holds (weights only; BatchNorm running statistics are excluded)" in result.stdout
    assert (tmp_path / "drift.png").exists()


def test_certify_distinguishes_a_bug_from_a_wrong_constant(tmp_path):
    bug = call("certify", _run_folder(tmp_path, 5.0))
    assert bug.exit_code == 1
    assert "a bug in the run" in bug.stdout
    wrong = call("certify", _run_folder(tmp_path, 0.5), "grad_bound=0.1")
    assert wrong.exit_code == 0
    assert "a wrong constant" in wrong.stdout
