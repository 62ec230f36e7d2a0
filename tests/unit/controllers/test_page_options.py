"""The page's options: who would serve it to everybody is told at the start."""

from __future__ import annotations

import pytest

from controllers.cli import run


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["page", "--page-host", "0.0.0.0"], "give --page-token-file or --page-client-ca-file"),
        (["page", "--page-host", "::"], "give --page-token-file or --page-client-ca-file"),
        (["page", "--page-host", "192.0.2.1"], "or listen on 127.0.0.1"),
        (["gc", "--page-port", "1", "--page-host", "0.0.0.0"], "give --page-token-file or"),
        (["page", "--page-client-ca-file", "x"], "--page-client-ca-file needs --page-cert-file"),
        (["page", "--page-cert-file", "x"], "--page-cert-file and --page-key-file go together"),
        (["page", "--page-port", "0"], "'0' is no port: 1 to 65535"),
        (["page", "--page-port", "65536"], "'65536' is no port: 1 to 65535"),
        (["gc", "--page-host", "127.0.0.1"], "--page-host needs --page-port: give both"),
        (["gc", "--page-token-file", "x"], "--page-token-file needs --page-port: give both"),
        (["gc", "--once", "--page-port", "9093"], "--page-port is of what runs on"),
    ],
)
def test_a_wrong_command_line_is_refused(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(args)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["--help"])
    assert "tortie-controllers gc --metrics-port 9092 --page-port 9093" in capsys.readouterr().out
