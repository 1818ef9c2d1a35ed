"""Secrets of a command line are stored nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucketlab.launch.command import without_secrets
from tests.commands import SCRIPTS, bucketlab, profiled

FAKE = "hf-0123456789-not-real"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["train.py", "--api-key", FAKE, "--lr", "1"], ["train.py", "--api-key", "***", "--lr", "1"]),
        (["train.py", f"--hf_token={FAKE}"], ["train.py", "--hf_token=***"]),
        (["train.py", f"wandb.api_key={FAKE}"], ["train.py", "wandb.api_key=***"]),
        (["train.py", "--db", f"postgresql://me:{FAKE}@host/db"], ["train.py", "--db", "postgresql://me:***@host/db"]),
        (["train.py", "--password", "--verbose"], ["train.py", "--password", "--verbose"]),
        (["train.py", "--tokenizer", "gpt2"], ["train.py", "--tokenizer", "gpt2"]),
        (["train.py", "--max-tokens", "512"], ["train.py", "--max-tokens", "512"]),
        (["train.py", "data=secrets.csv"], ["train.py", "data=secrets.csv"]),
    ],
)
def test_values_of_options_that_tell_of_a_secret_are_hidden(words: list[str], shown: list[str]) -> None:
    assert without_secrets(words) == shown


def test_a_secret_is_in_no_file_of_a_run_and_tune_asks_for_the_command(tmp_path: Path) -> None:
    environment = {"STEPS": "60", "SOME_TOKEN": FAKE + "-environment"}
    arguments = ["--api-key", FAKE]
    profiled(SCRIPTS / "plain.py", "--steps", "20", cwd=tmp_path, arguments=arguments, environment=environment)
    files = [path for path in (tmp_path / "traces").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if FAKE.encode() in path.read_bytes()]
    done = bucketlab("tune", cwd=tmp_path)
    assert done.returncode == 2
    assert "had a secret, which is not stored" in done.stderr
