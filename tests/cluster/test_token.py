"""`interplay cluster token` makes a token once, readable by its owner alone, and never prints it."""

import os
import re
import stat

import pytest

from interplay import cli
from interplay.cluster.cluster_file import make_token, open_to_others, read, read_token
from study.errors import SpecError


@pytest.fixture
def token(tmp_path, monkeypatch):
    """Path of the token of a cluster file, in two folders that do not exist."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.yaml").write_text(
        "cluster_name: a\nprovider: {type: aws}\nauth: {ssh_user: me}\n"
        "file_mounts: {/home/me/.ray/auth_token: ~/keys/ray/token}\n"
    )
    return tmp_path / "keys/ray/token"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_made_for_its_owner_alone(token):
    before = os.umask(0)
    try:
        made = make_token(read("file.yaml"))
    finally:
        os.umask(before)
    assert made == (token, "made")
    assert re.fullmatch(r"[0-9a-f]{64}", token.read_text())
    assert mode(token) == 0o600
    assert [mode(folder) for folder in (token.parent, token.parent.parent)] == [0o700, 0o700]


def test_the_file_has_its_mode_before_it_has_a_byte(token, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "secrets.token_hex", lambda size: seen.append((mode(token), token.stat().st_size)) or "a" * 64
    )
    make_token(read("file.yaml"))
    assert seen == [(0o600, 0)]


def test_a_token_that_is_there_is_kept_and_closed_to_others(token):
    token.parent.mkdir(parents=True)
    token.write_text("mine")
    token.chmod(0o644)
    assert open_to_others(token) == "0644"
    assert make_token(read("file.yaml")) == (token, "corrected")
    assert token.read_text() == "mine"
    assert open_to_others(token) is None
    assert make_token(read("file.yaml")) == (token, "kept")


def test_the_command_prints_the_path_and_not_the_token(token, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["interplay", "cluster", "token", "file.yaml"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert not ended.value.code
    assert err == ""
    assert f"Made the token {token}." in out
    assert token.read_text() not in out


@pytest.mark.parametrize(
    ("text", "message"), [("", "it is empty"), ("two words", "one word"), ("ü", "one word")]
)
def test_what_is_no_token_is_refused_and_left_alone(token, text, message):
    token.parent.mkdir(parents=True)
    token.write_text(text)
    with pytest.raises(SpecError, match=message):
        make_token(read("file.yaml"))
    assert token.read_text() == text


def test_a_missing_token_and_a_file_that_mounts_none_say_what_to_do(token):
    with pytest.raises(SpecError, match="interplay cluster token FILE"):
        read_token(token)
    (token.parents[2] / "none.yaml").write_text("cluster_name: a\nprovider: {type: aws}\n")
    with pytest.raises(SpecError, match=r"add `~/\.ray/auth_token: ~/\.ray/a-token`"):
        make_token(read("none.yaml"))
