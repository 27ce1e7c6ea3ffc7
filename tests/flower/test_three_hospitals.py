"""Three hospitals in network namespaces behind a proxy with TLS, with one link cut and restored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("three_hospitals.py")
PROBE = "mount -t tmpfs none /run && ip link add probe type bridge && ip netns add probe && ip netns delete probe"


@pytest.mark.slow
def test_a_hospital_whose_link_is_cut_comes_back_and_the_federation_goes_on(tmp_path: Path) -> None:
    alone = ["unshare", "--map-root-user", "--net", "--mount"]
    try:
        subprocess.run([*alone, "sh", "-c", PROBE], check=True, capture_output=True, timeout=240)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces cannot be made here ({getattr(error, 'stderr', error)!r})")
    # Names of namespaces are files in /run, which is replaced by an empty one that ends with the namespace.
    command = [*alone, "sh", "-c", 'mount -t tmpfs none /run && exec "$@"', "sh"]
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "the link of south is restored" in done.stdout
