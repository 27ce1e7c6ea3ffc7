"""One FedAvg run per benchmark at scale cpu on held-out training data: is every domain learned, is forgetting visible?

    python tools/docs/sizes.py [BENCHMARK]...

Each run has a seed that no study reports and evaluates on a fifth of the training data; test data is not used. The
outcome and the processor time are written to results/sizes.json, from which ``make reference`` makes the table in
docs/science/studies.md. Runs of benchmarks that the file has with the same settings are not repeated.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fedspecial
from fedspecial.core.events import of_kind, read_events
from fedspecial.core.files import write_atomic
from fedspecial.paper.planning import why_absent
from fedspecial.paper.scales import SCALES
from fedspecial.paper.sizes import HELD_OUT, read_sizes, size_settings
from fedspecial.runs.provenance import versions

RECORD = Path(__file__).parents[2] / "results" / "sizes.json"


def measure(benchmark: str) -> dict[str, Any]:
    """Run FedAvg once; what each domain had right after it was learned, and what was forgotten."""
    with tempfile.TemporaryDirectory() as folder:
        before = time.process_time()
        result = fedspecial.run(**SCALES["cpu"][benchmark].settings, **HELD_OUT, out=Path(folder) / "run")
        seconds = time.process_time() - before
        started = of_kind(read_events(Path(folder) / "run" / "events.jsonl"), "task_started")
    return {
        "settings": size_settings(benchmark),
        "versions": versions(),
        "domains": result.tasks,
        "majority": [event["majority"] for event in started],
        "matrix": result.matrix,
        "acc": result.acc,
        "bwt": result.bwt,
        "warnings": result.warnings,
        "processor_seconds": round(seconds, 1),
    }


def main() -> None:
    found = read_sizes(RECORD)
    for benchmark in sys.argv[1:] or SCALES["cpu"]:
        absent = why_absent("cpu", benchmark)
        if absent or found.get(benchmark, {}).get("settings") == size_settings(benchmark):
            sys.stdout.write(f"{absent or f'{benchmark}: recorded'}\n")
            continue
        found[benchmark] = measure(benchmark)
        ordered = {name: found[name] for name in SCALES["cpu"] if name in found}
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(content)}" for name, content in ordered.items())
        write_atomic(RECORD, f"{{\n{lines}\n}}\n".encode())
        entry = found[benchmark]
        sys.stdout.write(
            f"{benchmark}: ACC {entry['acc']:.3f}, BWT {entry['bwt']:.3f}, {entry['processor_seconds']} s\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
