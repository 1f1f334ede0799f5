"""A dump of any size passes through in pieces: what a process holds does not grow with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backup.conftest import MakeConfig

MIB = 1 << 20
STREAMED_MIB = 192
PROGRAM = """
import json, os, resource, sys
from pathlib import Path
from app.backup.config import BackupConfig
from app.backup.dump import Flow
from app.backup.seal import seal, unseal
from app.backup.store import Depot

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

config, count = BackupConfig.model_validate(json.loads(sys.argv[1])), int(sys.argv[3])
depot, key, piece = Depot.open(config, Path(sys.argv[2])), bytes(32), os.urandom(1 << 20)
before, there, back = peak(), Flow(), Flow()
depot.write("b/dump", seal(there.through(piece for _ in range(count)), key, "b"))
for _ in back.through(unseal(depot.read("b/dump"), key, "b")):
    pass
assert there.digest.digest() == back.digest.digest()
print(json.dumps({"grown": peak() - before, "bytes": back.size}))
"""


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_memory_does_not_grow_with_the_dump(place: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    settings = {}
    if place == "s3":
        make: MakeConfig = request.getfixturevalue("s3_config")
        config = make()
        settings = {
            "store": config.store, "s3_endpoint": config.s3_endpoint, "s3_access_key_id": "test",
            "s3_secret_access_key": "test",
        }  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, json.dumps(settings), str(tmp_path), str(STREAMED_MIB)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["bytes"] == STREAMED_MIB * MIB
    assert measured["grown"] < STREAMED_MIB / 2, measured
