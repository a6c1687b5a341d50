"""What the tests of the command share."""

import pytest

from study import cli


@pytest.fixture
def columns():
    """Width of the terminal."""
    return 120


@pytest.fixture
def command(tmp_path, monkeypatch, capsys, columns):
    """Run the command in an empty folder; return (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["interplay", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run
