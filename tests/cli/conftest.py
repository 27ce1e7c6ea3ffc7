from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from processes import Outcome

Call = Callable[..., Outcome]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """``call("run", ...)`` runs the command line in this process, in an empty folder."""
    from fedspecial.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDSPECIAL_DATA", raising=False)

    def command(*argv: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["fedspecial", *map(str, argv)])
        with pytest.raises(SystemExit) as end:
            main()
        output = capsys.readouterr()
        return Outcome(int(end.value.code or 0), output.out, output.err)

    return command
