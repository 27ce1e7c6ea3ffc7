"""Scripts without ``if __name__ == "__main__":``, which worker processes execute again when they start."""

from __future__ import annotations

import multiprocessing

from fedspecial.errors import InputError

ADVICE = 'in a script, put the call under `if __name__ == "__main__":`'


def refuse_in_starting_process() -> None:
    """Refuse a call that a process makes while it is still importing the main program of the one that started it.

    Otherwise each worker process would make a run directory and train, before it fails to start workers of its own.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(f"this process was started by a call that its program repeats when it is imported; {ADVICE}")
