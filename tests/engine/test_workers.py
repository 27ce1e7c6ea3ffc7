"""Worker processes: the same model for any number of them, whatever happens to them."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from worker_methods import Misbehaving

import fedspecial
from fedspecial.core.events import Event, RoundFinished, of_kind, read_events
from fedspecial.engine.pools import segments
from fedspecial.engine.pools.jobs import EvalSet, Job, JobResult, SummaryJob
from fedspecial.engine.pools.pool import Lost, failure
from fedspecial.engine.pools.pooled import PooledEngine
from fedspecial.engine.pools.segments import Segment
from fedspecial.engine.pools.shared_tensors import copy_from, copy_to, space_for
from fedspecial.errors import ClientError, InputError
from fedspecial.runs.jobs import settings_key
from processes import ENVIRONMENT
from toy_problems import begin, learn, rotated_blobs

EVERYONE = {"clients": 4, "clients_per_round": 4, "partition": "iid"}


def misbehaving(tmp_path: Path, how: str, times: int) -> Misbehaving:
    folder = tmp_path / "occurrences"
    folder.mkdir()
    return Misbehaving(how=how, times=times, folder=str(folder))


def lost(folder: Path) -> list[dict[str, Any]]:
    return of_kind(read_events(folder / "events.jsonl"), "worker_lost")


@pytest.mark.parametrize(("how", "reason"), [("kill", "killed by SIGKILL"), ("memory", "out of memory")])
def test_a_lost_worker_does_not_change_the_model(how: str, reason: str, tmp_path: Path) -> None:
    expected = learn(tmp_path / "alone", "fedavg", **EVERYONE)
    found = learn(tmp_path / "run", misbehaving(tmp_path, how, times=1), workers=2, **EVERYONE)
    assert found.model_sha256 == expected.model_sha256
    (event,) = lost(tmp_path / "run")
    assert (event["job"], event["reason"], event["attempt"]) == ("client 2, task 1, round 2", reason, 1)
    assert not multiprocessing.active_children()


def test_a_client_that_loses_its_worker_three_times_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    method = misbehaving(tmp_path, "kill", times=3)
    with pytest.raises(ClientError, match=r"client 2, task 1, round 2: its worker process was lost 3 times.*resumed"):
        learn(tmp_path / "run", method, workers=2, **EVERYONE)
    assert not multiprocessing.active_children()
    resumed = fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs(), method=method)
    assert resumed.model_sha256 == learn(tmp_path / "alone", "fedavg", **EVERYONE).model_sha256


def test_an_exception_in_a_worker_names_client_task_round_and_batch(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"client 2, task 1, round 2, batch 2: KeyError: 'label'"):
        learn(tmp_path / "run", misbehaving(tmp_path, "error", times=9), workers=2, **EVERYONE)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8 MiB"),
    ],
)
def test_a_job_that_ran_out_of_memory_is_run_again_wherever_the_memory_was(error: Exception) -> None:
    located = ClientError("client 2, task 1, round 2")
    located.__cause__ = error
    assert failure(located) == Lost("out of memory")


class StopError(Exception):
    pass


def stop_in_task_2(event: Event) -> None:
    if isinstance(event, RoundFinished) and (event.task, event.round) == (2, 1):
        raise StopError


def test_a_run_stopped_with_two_workers_is_resumed_with_one(tmp_path: Path) -> None:
    expected = learn(tmp_path / "alone", "special", lam=0.3)
    with pytest.raises(StopError):
        learn(tmp_path / "run", "special", lam=0.3, workers=2, listeners=[stop_in_task_2])
    assert not multiprocessing.active_children()
    found = fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs(), workers=1)
    assert found.model_sha256 == expected.model_sha256
    started = of_kind(read_events(tmp_path / "run" / "events.jsonl"), "engine_started")
    assert [event["workers"] for event in started] == [2, 1]


def test_a_resumed_run_keeps_the_settings_that_determine_its_result(tmp_path: Path) -> None:
    with pytest.raises(StopError):
        learn(tmp_path / "run", "special", lam=0.3, listeners=[stop_in_task_2])
    with pytest.raises(InputError, match=r"rounds=9: a resumed run keeps its settings; only .*workers may change"):
        fedspecial.resume(tmp_path / "run", benchmark=rotated_blobs(), rounds=9)


def test_how_a_run_is_executed_is_not_part_of_its_identity() -> None:
    settings = {"benchmark": "digits-shift", "method": "fedavg"}
    assert settings_key({**settings, "workers": 4}) == settings_key(settings)
    assert settings_key({**settings, "rounds": 4}) != settings_key(settings)


def test_an_object_that_cannot_be_sent_gets_one_clear_line(tmp_path: Path) -> None:
    class Local(Misbehaving):
        pass

    with pytest.raises(InputError, match=r"workers=2: an object of this run cannot be sent .* or use workers=1"):
        learn(tmp_path / "run", Local(), workers=2)


def test_a_program_from_standard_input_is_told_to_become_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    with pytest.raises(
        InputError, match=r"workers=2: .* cannot import the main program \(<stdin>\); save it as a file"
    ):
        learn(tmp_path / "run", fedspecial.FedAvg(), workers=2)


def started_with_workers(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A run with two workers in its first rounds: its process, and the process ids of its children."""
    command = [sys.executable, "-m", "fedspecial", "run", "digits-shift", "model=mlp", "width=8", "method=fedavg"]
    command += ["rounds=5000", "eval_every=0", "cap=160", "workers=2", f"out={folder}"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=ENVIRONMENT
    )
    deadline = time.monotonic() + 240
    events = folder / "events.jsonl"
    while not (events.exists() and b'"event": "round"' in events.read_bytes()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process, children_of(process.pid)


def children_of(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def wait_until_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + 240
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "worker processes are still running"
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_workers_end_with_their_run_however_it_ends(sent: signal.Signals, code: int, tmp_path: Path) -> None:
    process, children = started_with_workers(tmp_path / "run")
    assert len(children) >= 2
    if sent == signal.SIGINT:
        os.killpg(process.pid, sent)  # Ctrl-C reaches all processes of a terminal
    else:
        process.send_signal(sent)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == code, output
    assert "Traceback" not in output
    wait_until_ended(children)


def test_shared_memory_has_no_name_so_nothing_is_left_if_all_processes_are_killed() -> None:
    segment = Segment.create(1 << 16)
    assert os.fstat(segment.descriptor).st_nlink == 0
    segment.close()


def test_shared_memory_is_on_the_disk_where_the_memory_folder_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Path | None] = []

    def reserved(size: int, folder: Path | None) -> int:
        tried.append(folder)
        if folder is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(size, folder)

    original = segments._reserved
    monkeypatch.setattr(segments, "_reserved", reserved)
    segment = Segment.create(1 << 16)
    segment.memory[-1] = 7
    assert (tried, segment.memory[-1]) == ([Path("/dev/shm"), None], 7)
    segment.close()


def test_vectors_of_any_type_and_length_return_from_a_segment_as_they_were() -> None:
    vectors = {"theta": torch.randn(5), "none": torch.empty(0), "double": torch.randn(3, dtype=torch.float64)}
    segment = Segment.create(space_for(vectors.values()))
    found = copy_from(segment, copy_to(segment, vectors))
    assert found.keys() == vectors.keys()
    assert all(torch.equal(found[name], vector) for name, vector in vectors.items())
    segment.close()


class FakePool:
    """Records the order of jobs and completes them in reverse."""

    workers = 2

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job], outputs: int) -> Iterator[tuple[int, JobResult]]:
        self.jobs = list(jobs)
        for position in reversed(range(len(jobs))):
            job = jobs[position]
            assert isinstance(job, SummaryJob)
            yield position, JobResult(summary=(torch.tensor(job.start),))


def test_the_longest_jobs_start_first_and_results_keep_the_order_of_the_clients(tmp_path: Path) -> None:
    run = begin(tmp_path / "run")
    message = run.method.eval_broadcast(run.server, 0, 1)
    jobs = [SummaryJob(message, EvalSet(1, None, False), number, number + 1) for number in range(4)]
    pool = FakePool()
    engine = PooledEngine(run.engine.runner, run.engine.states, run.engine.payloads, pool)  # type: ignore
    results = list(engine._ordered(jobs, work=[10, 40, 20, 30]))
    assert [job.start for job in pool.jobs] == [1, 3, 2, 0]  # type: ignore[union-attr]
    assert [int(result.summary[0]) for result in results] == [0, 1, 2, 3]
    run.log.close()
