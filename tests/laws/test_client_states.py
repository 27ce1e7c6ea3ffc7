"""Client states: in memory up to a limit, on disk by content, and never another value than the one that was saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedspecial.core.files import BlobStore
from fedspecial.core.messages import ClientState
from fedspecial.engine.clients.client_states import ClientStates


def state_of(value: float, size: int = 4) -> ClientState:
    return ClientState({"model": torch.full((size,), value)}, {"logits": torch.full((2,), value)}, {"task": int(value)})


def files(store: BlobStore) -> set[str]:
    return {path.name for path in store.folder.iterdir()}


def test_a_state_is_written_when_a_checkpoint_needs_it_and_not_before(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    states = ClientStates(store, {})
    for value in range(5):
        states.save(3, state_of(value))
    assert not files(store)
    index = states.index
    assert files(store) == {index[3]}
    again = ClientStates(BlobStore(tmp_path), {str(client): blob for client, blob in index.items()})
    assert again.load(3).to_bytes() == state_of(4).to_bytes()


def test_a_state_that_did_not_change_is_not_packed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = ClientStates(BlobStore(tmp_path), {})
    states.save(0, state_of(1))
    before = dict(states.index)
    monkeypatch.setattr(ClientState, "to_bytes", lambda state: pytest.fail("packed again"))
    states.save(0, states.load(0))
    assert states.index == before


def test_what_is_changed_after_loading_is_kept_only_if_it_is_saved(tmp_path: Path) -> None:
    states = ClientStates(BlobStore(tmp_path), {})
    states.save(0, state_of(1))
    loaded = states.load(0)
    loaded.models["model"] = torch.zeros(4)
    loaded.numbers["task"] = 9
    assert states.load(0).to_bytes() == state_of(1).to_bytes()
    written = states.load(0)
    written.tensors["logits"].fill_(7)
    states.save(0, written)
    assert states.load(0).tensors["logits"].tolist() == [7, 7]
    states.copy(0).tensors["logits"].fill_(8)
    assert states.load(0).tensors["logits"].tolist() == [7, 7]


def test_a_tensor_written_in_place_and_not_saved_is_an_error_and_not_a_wrong_result(tmp_path: Path) -> None:
    states = ClientStates(BlobStore(tmp_path), {})
    states.save(2, state_of(1))
    states.load(2).tensors["logits"].fill_(7)
    with pytest.raises(RuntimeError, match="client 2: a tensor of its state was changed in place"):
        states.load(2)


def test_a_saved_state_shares_no_memory_with_the_model(tmp_path: Path) -> None:
    states, vector = ClientStates(BlobStore(tmp_path), {}), torch.ones(4)
    states.save(0, ClientState({"model": vector}))
    vector.zero_()
    assert states.load(0).models["model"].tolist() == [1, 1, 1, 1]


def test_an_empty_state_is_no_state(tmp_path: Path) -> None:
    states = ClientStates(BlobStore(tmp_path), {})
    states.save(0, state_of(1))
    states.save(0, ClientState())
    assert not states.index
    assert not states.load(0)
    assert states.load_bytes(0) == b""


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.sampled_from(["object", "bytes", "index"]))))
def test_any_memory_limit_gives_the_same_states(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("states")
    expected: dict[int, bytes] = {}
    variants = [ClientStates(BlobStore(folder / str(limit)), {}, limit) for limit in (0, 60, 1 << 20)]
    for client, value, how in steps:
        for states in variants:
            if how == "index":
                assert states.index.keys() == expected.keys()
            elif how == "bytes":
                assert states.load_bytes(client) == expected.get(client, b"")
                states.save_bytes(client, state_of(value).to_bytes())
            else:
                assert states.load(client).numbers == ClientState.from_bytes(expected.get(client, b"")).numbers
                states.save(client, state_of(value))
        if how != "index":
            expected[client] = state_of(value).to_bytes()
    indices = [states.index for states in variants]
    assert indices[0] == indices[1] == indices[2]
    assert all(states.load_bytes(client) == data for states in variants for client, data in expected.items())
    assert all(states._size <= states._limit for states in variants)
