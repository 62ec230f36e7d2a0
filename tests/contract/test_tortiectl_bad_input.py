"""Every command and what cannot be used: clear text, exit status 1, and nothing is changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from libtortie.model.keys import Kind
from libtortie.model.resources import API_VERSION
from tests.fakes.ctl_stores import CtlOn, on_sqlite, thing
from tortiectl.cli import main

WITH_FILE = ("create", "apply", "replace", "delete", "validate", "get")
WITH_KIND = (
    ("get",),
    ("delete", "x"),
    ("patch", "x", "-p", "{}"),
    ("label", "x", "a=b"),
)
ON_THE_STORE: tuple[tuple[str, ...], ...] = (
    ("get", "ippools"),
    ("apply", "-f", "FILE"),
    ("create", "-f", "FILE"),
    ("replace", "-f", "FILE"),
    ("delete", "ippool", "x"),
    ("patch", "ippool", "x", "-p", "{}"),
    ("label", "ippool", "x", "a=b"),
    ("ipam", "show"),
    ("ipam", "check"),
    ("ipam", "configure", "--strictaffinity=true"),
    ("version",),
)


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[CtlOn]:
    with on_sqlite(tmp_path) as made:
        yield made


@pytest.mark.parametrize("verb", WITH_FILE)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "manifest.yaml: No such file or directory: name a file this user may read"),
        ("a: [1", "manifest.yaml: line 1: "),
        ("a: 1\na: 2\n", "line 2: duplicate key a"),
        ("\x00", "manifest.yaml: "),
        ("kind: IPPol\n", "kind: 'IPPol'; did you mean IPPool?"),
        ("kind: Deployment\n", "kind: 'Deployment' is none of IPPool, "),
        ("just text", "expected a resource, got str"),
        ("- 7", "item 1: expected a resource, got int"),
        ("kind: IPPool\nmetadata: 7\n", "metadata"),
        ("metadata: {name: a}\n", "manifest.yaml: kind: is missing\n"),
        ("a: &a [*a]\n", "manifest.yaml: line 1: excessive aliases\n"),
    ],
)
def test_files_that_cannot_be_used(ctl: CtlOn, verb: str, text: str | None, words: str) -> None:
    path = ctl.root / "manifest.yaml"
    if text is not None:
        path.write_text(text)
    done = ctl.run(verb, "-f", str(path), status=1)
    assert words in done.stderr
    assert done.stdout == ""
    assert ctl.names(Kind.IP_POOL) == []


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ("{name: a, labels: {rack: 1}}", "labels.rack: 1 is not a string: write it in quotes"),
        ("{name: 12}", "Node 12: metadata.name: 12 is not a string: write it in quotes"),
        ('{name: "a\\nError: b"}', "Node a\\nError: b: metadata.name: "),
    ],
)
def test_what_is_wrong_is_a_line_each(ctl: CtlOn, meta: str, words: str) -> None:
    path = ctl.root / "manifest.yaml"
    path.write_text(f"apiVersion: {API_VERSION}\nkind: Node\nmetadata: {meta}\n")
    done = ctl.run("validate", "-f", str(path), status=1)
    assert words in done.stderr
    assert all(str(path) in line for line in done.stderr.splitlines())


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "x"])
@pytest.mark.parametrize(
    "args",
    [
        ("--request-timeout", "{}", "version"),
        ("node", "drain-plan", "n1", "--watch", "--timeout", "{}"),
        ("vm", "migrate", "a/b", "--watch", "--timeout", "{}"),
        ("bgp", "canary", "--timeout", "{}"),
        ("vm", "forecast", "--memory", "1Gi", "--downtime-ms", "{}"),
        ("vm", "forecast", "--memory", "1Gi", "--completion-timeout-per-gib", "{}"),
    ],
)
def test_numbers_that_are_none(ctl: CtlOn, args: tuple[str, ...], number: str) -> None:
    done = ctl.run(*(one.format(number) for one in args), status=1)
    assert f"Invalid value for '{args[-2] if args[-1] == '{}' else args[0]}'" in done.stderr


@pytest.mark.parametrize("verb", ["show", "release"])
@pytest.mark.parametrize("address", ["1.2.3", "fe80::1%eth0", "10.0.0.0/8", "nan"])
def test_addresses_that_are_none(ctl: CtlOn, verb: str, address: str) -> None:
    done = ctl.run("ipam", verb, "--ip", address, status=1)
    assert f"--ip: '{address}' is not an IP address" in done.stderr


@pytest.mark.parametrize("verb", WITH_FILE)
def test_a_file_that_is_none_is_not_waited_for(ctl: CtlOn, verb: str) -> None:
    import os

    os.mkfifo(ctl.root / "pipe")
    said = ctl.run(verb, "-f", str(ctl.root / "pipe"), status=1).stderr
    assert "not a regular file" in said


@pytest.mark.parametrize("command", WITH_KIND)
def test_kinds_that_are_none(ctl: CtlOn, command: tuple[str, ...]) -> None:
    verb, *rest = command
    assert "did you mean ippool?" in ctl.run(verb, "ipool", *rest, status=1).stderr
    assert "known are ippools, " in ctl.run(verb, "zebra", *rest, status=1).stderr


@pytest.mark.parametrize("command", [command for command in WITH_KIND if len(command) > 1])
def test_resources_that_are_not_there(ctl: CtlOn, command: tuple[str, ...]) -> None:
    verb, *rest = command
    said = ctl.run(verb, "ippool", *rest, status=1).stderr
    assert "resource does not exist: IPPool(x) with error: <nil>" in said


def test_fields_that_are_wrong_are_told_for_all_documents(ctl: CtlOn) -> None:
    good = thing(Kind.IP_POOL, "good", cidr="10.1.0.0/16")
    first = thing(Kind.IP_POOL, "one", cidr="10.2.0.0/16", blokSize=26)
    second = thing(Kind.BGP_PEER, "two", peerIP="here", asNumber="x")
    for verb in ("create", "apply", "replace", "validate"):
        said = ctl.write(verb, good, first, second, status=1).stderr
        assert "document 2: IPPool one: spec.blokSize: no such field is known; did you" in said
        assert "document 3: BGPPeer two: spec.peerIP: " in said
        assert "document 3: BGPPeer two: spec.asNumber: " in said
        assert "good" not in said
    assert ctl.names(Kind.IP_POOL) == []


@pytest.mark.parametrize("command", ON_THE_STORE)
@pytest.mark.parametrize("kind", ["etcdv3", "kubernetes"])
def test_a_datastore_that_never_answers(
    tmp_path: Path, command: tuple[str, ...], kind: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        place = "ETCD_ENDPOINTS" if kind == "etcdv3" else "K8S_API_ENDPOINT"
        on = CtlOn(tmp_path, None, {"DATASTORE_TYPE": kind, place: url})  # type: ignore[arg-type]  # nothing is looked at
        file = on.file(thing(Kind.IP_POOL, "a", cidr="10.1.0.0/16"))
        words = [file if word == "FILE" else word for word in command]
        done = on.run("--request-timeout", "0.5", *words, status=1)
        assert url.removeprefix("http://") in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("vm", "list", "-A"),
        ("vm", "show", "a/b"),
        ("vm", "preflight", "--all"),
        ("vm", "migrate", "a/b"),
        ("vm", "evacuate-cancel", "a/b"),
        ("vm", "forecast", "a/b", "--bandwidth", "1Gi"),
        ("vm", "trace", "m"),
        ("cpu-models",),
        ("node", "drain-plan", "n1"),
        ("ipam", "fsck"),
    ],
)
def test_an_api_that_never_answers(tmp_path: Path, command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environ = {"DATASTORE_TYPE": "kubernetes", "K8S_API_ENDPOINT": url}
        on = CtlOn(tmp_path, None, environ)  # type: ignore[arg-type]  # nothing is looked at
        done = on.run("--request-timeout", "0.5", *command, status=1)
        assert f"{url}: not done after 0.5 s" in done.stderr


# --- completion, versions, help -----------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    said = CliRunner().invoke(main, ["completion", shell]).stdout
    assert "_TORTIECTL_COMPLETE" in said
    assert "tortiectl" in said


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tortiectl ge", ["get"]),
        ("tortiectl get ippo", ["ippools"]),
        ("tortiectl get ippool ", ["blue", "green"]),
        ("tortiectl delete ippool gr", ["green"]),
        ("tortiectl label ippool b", ["blue"]),
        ("tortiectl ipam sh", ["show"]),
        ("tortiectl get zebra x", []),
        ("tortiectl apply --skip-e", ["--skip-empty"]),
    ],
)
def test_what_is_completed(ctl: CtlOn, words: str, found: list[str]) -> None:
    ctl.write(
        "create",
        thing(Kind.IP_POOL, "blue", cidr="10.1.0.0/16"),
        thing(Kind.IP_POOL, "green", cidr="10.2.0.0/16"),
    )
    environ = {
        **ctl.environ,
        "_TORTIECTL_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = CliRunner().invoke(main, [], env=environ, prog_name="tortiectl")
    assert [line.partition(",")[2] for line in done.stdout.split()] == found


def test_names_are_not_completed_where_nobody_answers() -> None:
    environ = {
        "DATASTORE_TYPE": "sqlite",
        "TORTIE_SQLITE_PATH": "/no/such.db",
        "_TORTIECTL_COMPLETE": "bash_complete",
        "COMP_WORDS": "tortiectl get ippool ",
        "COMP_CWORD": "3",
    }
    done = CliRunner().invoke(main, [], env=environ, prog_name="tortiectl")
    assert (done.exit_code, done.stdout.strip()) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        *("get", "create", "apply", "replace", "delete", "patch", "label", "validate"),
        *(f"ipam {one}" for one in ("show", "check", "configure", "release", "split")),
        *(f"node {one}" for one in ("status", "checksystem", "diags", "install", "uninstall")),
        *(f"datastore migrate {one}" for one in ("lock", "export", "import", "unlock")),
        *("completion", "cluster diags", "version"),
    ],
)
def test_help_has_examples(command: str) -> None:
    said = CliRunner().invoke(main, [*command.split(), "--help"]).stdout
    assert "Examples:\n  " in said
    assert f"tortiectl {command}" in said


def test_versions_that_change_are_told(ctl: CtlOn, monkeypatch: pytest.MonkeyPatch) -> None:
    from libtortie.model.resources import parse_resource

    bodies = [
        thing(Kind.CLUSTER_INFORMATION, "default", calicoVersion=version)
        for version in ("v1", "v1", "v2")
    ]
    first, *later = [parse_resource(Kind.CLUSTER_INFORMATION, body) for body in bodies]
    ctl.store.create(first.key, first)
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if not later:
            raise KeyboardInterrupt
        ctl.store.update(first.key, later.pop(0), ctl.store.get(first.key).revision)

    monkeypatch.setattr("time.sleep", sleep)
    said = ctl.run("version", "--poll", "90s", status=130).stdout
    assert said.count("Cluster Version:   v1") == 1
    assert said.count("Cluster Version:   v2") == 1
    assert waited == [90.0] * 3
    assert "--poll: " in ctl.run("version", "--poll", "soon", status=1).stderr
