"""A real PostgreSQL server, started by the tests that need one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from tests.ports import free_port

PASSWORD = "s3cret@/word"


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """A server of its own in a temporary folder, as another user where this one is root, which it refuses to run as."""
    binaries = _postgresql_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here: neither initdb on the PATH nor /usr/lib/postgresql/*/bin")
    driver = next((name for name in ("psycopg", "psycopg2") if importlib.util.find_spec(name)), None)
    if driver is None:
        pytest.skip("no driver for PostgreSQL here: neither psycopg nor psycopg2")
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="bucketlab-postgresql-"))
    if user is not None:
        shutil.chown(folder, user)
    password = folder / "password"
    password.write_text(PASSWORD + "\n")
    port = free_port()

    def run(*command: str) -> None:
        subprocess.run(command, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=120)

    data = str(folder / "data")
    run(f"{binaries}/initdb", "-D", data, "-U", "tuner", "--auth=scram-sha-256", f"--pwfile={password}", "--no-sync")
    settings = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
    run(f"{binaries}/pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", settings, "start")
    yield f"postgresql+{driver}://tuner:s3cret%40%2Fword@127.0.0.1:{port}/postgres"
    run(f"{binaries}/pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    shutil.rmtree(folder)


@pytest.fixture
def postgresql(postgresql_server: str) -> Iterator[str]:
    """The server's URL, with none of the other tests' studies."""
    yield postgresql_server
    for name in optuna.get_all_study_names(postgresql_server):
        optuna.delete_study(study_name=name, storage=postgresql_server)


def _postgresql_binaries() -> str | None:
    initdb = shutil.which("initdb")
    found = [Path(initdb).resolve()] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return str(found[-1].parent) if found else None
