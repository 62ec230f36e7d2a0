"""The CNI contract: environment, versions, dispatch, and every error as JSON with its code."""

from __future__ import annotations

import json
from ipaddress import ip_interface
from typing import Any

import pytest

from cni_plugin import calls
from cni_plugin import errors as refusals
from cni_plugin.skel import CODES, CmdArgs, Response, dispatch
from cni_plugin.types import SUPPORTED_VERSIONS, Interface, NetConf, Result
from libtortie import errors
from libtortie.metrics import exposition

ENV = {
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/run/netns/x",
    "CNI_IFNAME": "eth0",
    "CNI_PATH": "/opt/cni/bin",
    "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=u",
}


class Recorder:
    """A plugin that remembers what it was asked and does what it is told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error = error

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.error:
            raise self.error

    def cmd_add(self, args: CmdArgs, conf: NetConf) -> Result:
        self._called("ADD", args, conf)
        interfaces = (Interface("cali0", "ee:ee:ee:ee:ee:ee", 1500), Interface("eth0"))
        return Result(interfaces, (ip_interface("10.65.0.2/32"),))

    def cmd_del(self, args: CmdArgs, conf: NetConf) -> None:
        self._called("DEL", args, conf)

    def cmd_check(self, args: CmdArgs, conf: NetConf) -> None:
        self._called("CHECK", args, conf)

    def cmd_gc(self, conf: NetConf) -> None:
        self._called("GC", conf)

    def cmd_status(self, conf: NetConf) -> None:
        self._called("STATUS", conf)


def call(
    plugin: Any = None, stdin: bytes | None = None, version: str = "1.1.0", **env: str | None
) -> tuple[Response, Any]:
    body = json.dumps({"cniVersion": version, "name": "net", "type": "tortie"}).encode()
    merged = {k: v for k, v in {**ENV, **env}.items() if v is not None}
    answer = dispatch(merged, body if stdin is None else stdin, plugin or Recorder())
    return answer, json.loads(answer.stdout) if answer.stdout else None


def refused(code: int, message: str, **kw: Any) -> None:
    answer, body = call(**kw)
    assert answer.code == 1
    assert body["code"] == code, body
    assert message in body["msg"], body
    assert body["cniVersion"] in SUPPORTED_VERSIONS
    assert answer.stdout.endswith(b"\n")


def test_each_verb_reaches_its_method() -> None:
    for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        plugin = Recorder()
        answer, body = call(plugin, CNI_COMMAND=verb)
        assert answer.code == 0, body
        assert [c[0] for c in plugin.calls] == [verb]
        assert (body is not None) == (verb == "ADD")


def test_arguments_are_parsed() -> None:
    plugin = Recorder()
    call(plugin)
    args = plugin.calls[0][1]
    assert (args.container_id, args.netns, args.ifname) == ("c1", "/run/netns/x", "eth0")
    assert (args.namespace, args.pod, args.pod_uid) == ("default", "web-0", "u")
    plugin = Recorder()
    call(plugin, CNI_ARGS="K8S_POD_NAME=only-the-name")
    assert (plugin.calls[0][1].pod, plugin.calls[0][1].namespace) == ("", "default")


@pytest.mark.parametrize(
    "args",
    [
        "",
        "IP=10.0.0.1;MAC=02:00:00:00:00:01;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u",
        "IgnoreUnknown=1;PORT=7",
        "PORT=7;IgnoreUnknown=True",
        "IgnoreUnknown=0",
    ],
)
def test_arguments_that_are_known_or_may_be_ignored(args: str) -> None:
    plugin = Recorder()
    assert call(plugin, CNI_ARGS=args)[0].code == 0
    assert plugin.calls


@pytest.mark.parametrize(
    "args",
    [
        "PORT=7",
        "IgnoreUnknown=yes",
        "nonsense",
        "=x",
        "K8S_POD_UID=\udcff",
        "K8S_POD_NAME=../x;K8S_POD_NAMESPACE=d",
        "K8S_POD_NAME=x;K8S_POD_NAMESPACE=a.b",
        f"K8S_POD_NAME={'x' * 254};K8S_POD_NAMESPACE=d",
    ],
)
@pytest.mark.parametrize("netns", ["relative", "/run/\udcff", "/run/\0"])
def test_del_goes_by_what_it_can_read(args: str, netns: str) -> None:
    plugin = Recorder()
    said = args + ";IP=10.0.0.1"
    assert call(plugin, CNI_COMMAND="DEL", CNI_ARGS=said, CNI_NETNS=netns)[0].code == 0
    ((_, seen, _),) = plugin.calls
    assert (seen.container_id, seen.netns, seen.pod) == ("c1", "", "")
    assert seen.args["IP"] == "10.0.0.1"


def test_a_factory_gets_the_configuration() -> None:
    plugin, seen = Recorder(), []

    def build(conf: NetConf) -> Recorder:
        seen.append(conf.name)
        return plugin

    call(build)
    assert seen == ["net"]
    assert plugin.calls
    refused(11, "later", plugin=lambda conf: (_ for _ in ()).throw(errors.Unavailable("later")))


def test_version_needs_no_configuration_and_no_plugin() -> None:
    for stdin, expected in (
        (b"", "1.1.0"),
        (b'{"cniVersion":"0.4.0"}', "0.4.0"),
        (b"junk", "1.1.0"),
    ):
        answer, body = call(stdin=stdin, CNI_COMMAND="VERSION")
        assert answer.code == 0
        assert body == {"cniVersion": expected, "supportedVersions": list(SUPPORTED_VERSIONS)}


@pytest.mark.parametrize(
    ("verb", "oldest"), [("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")]
)
def test_verbs_have_their_first_version(verb: str, oldest: str) -> None:
    for version in SUPPORTED_VERSIONS:
        answer, body = call(version=version, CNI_COMMAND=verb)
        known = SUPPORTED_VERSIONS.index(version) >= SUPPORTED_VERSIONS.index(oldest)
        assert (answer.code == 0) == known
        if not known:
            assert body["code"] == 1
            assert body["cniVersion"] == version


@pytest.mark.parametrize("version", ["9.9.9", "1.0", "2.0.0", "1.0.0-alpha"])
def test_an_unknown_version_is_code_1(version: str) -> None:
    for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        refused(1, version, version=version, CNI_COMMAND=verb)


def test_no_version_means_the_oldest_for_every_verb_alike() -> None:
    stdin = b'{"name":"net","type":"tortie"}'
    answer, body = call(stdin=stdin)
    assert answer.code == 0
    assert body["cniVersion"] == "0.2.0"
    answer, _ = call(stdin=stdin, CNI_COMMAND="DEL")
    assert answer.code == 0


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"CNI_COMMAND": None}, "CNI_COMMAND"),
        ({"CNI_COMMAND": "add"}, "CNI_COMMAND"),
        ({"CNI_CONTAINERID": None}, "CNI_CONTAINERID"),
        ({"CNI_CONTAINERID": "../../etc"}, "CNI_CONTAINERID"),
        ({"CNI_CONTAINERID": "-c"}, "CNI_CONTAINERID"),
        ({"CNI_CONTAINERID": "c1\n"}, "CNI_CONTAINERID"),
        ({"CNI_CONTAINERID": "c" * 129}, "CNI_CONTAINERID"),
        ({"CNI_CONTAINERID": "vmi.default.web"}, "CNI_CONTAINERID"),
        ({"CNI_CONTAINERID": "vmi.default.web", "CNI_COMMAND": "DEL"}, "VM's addresses"),
        ({"CNI_CONTAINERID": "vmi.default.web", "CNI_COMMAND": "CHECK"}, "VM's addresses"),
        ({"CNI_CONTAINERID": "x.vmi.default.web", "CNI_COMMAND": "DEL"}, "VM's addresses"),
        ({"CNI_CONTAINERID": "c\udcff"}, "CNI_CONTAINERID"),
        ({"CNI_NETNS": "/run/netns/\udcff"}, "CNI_NETNS"),
        ({"CNI_IFNAME": "eth\udcff"}, "CNI_IFNAME"),
        ({"CNI_ARGS": "K8S_POD_UID=\udcff"}, "CNI_ARGS"),
        ({"CNI_ARGS": "\udcff=1"}, "CNI_ARGS"),
        ({"CNI_COMMAND": "\udcff"}, "CNI_COMMAND"),
        ({"CNI_NETNS": None}, "CNI_NETNS"),
        ({"CNI_NETNS": "relative"}, "CNI_NETNS"),
        ({"CNI_IFNAME": None}, "CNI_IFNAME"),
        ({"CNI_IFNAME": "e" * 16}, "CNI_IFNAME"),
        ({"CNI_IFNAME": ".."}, "CNI_IFNAME"),
        ({"CNI_IFNAME": "a/b"}, "CNI_IFNAME"),
        ({"CNI_IFNAME": "a b"}, "CNI_IFNAME"),
        ({"CNI_IFNAME": "eth:0"}, "CNI_IFNAME"),
        ({"CNI_ARGS": "nonsense"}, "CNI_ARGS"),
        ({"CNI_ARGS": "PORT=7"}, r'"PORT" is unknown, and IgnoreUnknown is not set'),
        ({"CNI_ARGS": "PORT=7;IgnoreUnknown=0"}, '"PORT" is unknown'),
        ({"CNI_ARGS": "PORT=7;IgnoreUnknown=FALSE", "CNI_COMMAND": "CHECK"}, '"PORT" is unknown'),
        ({"CNI_ARGS": "IgnoreUnknown=yes"}, "IgnoreUnknown is"),
        ({"CNI_ARGS": "K8S_POD_NAME=../x;K8S_POD_NAMESPACE=d"}, "K8S_POD_NAME"),
        ({"CNI_ARGS": "K8S_POD_NAME=x;K8S_POD_NAMESPACE=a.b"}, "K8S_POD_NAMESPACE"),
        ({"CNI_ARGS": "K8S_POD_NAME=X;K8S_POD_NAMESPACE=d"}, "K8S_POD_NAME"),
        ({"CNI_ARGS": f"K8S_POD_NAME=x;K8S_POD_NAMESPACE={'n' * 64}"}, "K8S_POD_NAMESPACE"),
    ],
)
def test_a_bad_environment_is_code_4_and_named(env: dict[str, str | None], message: str) -> None:
    refused(4, message, **env)


@pytest.mark.parametrize("container", ["vmi", "vmix.a", "avmi.b", "a.vmi", "vm.i"])
def test_ids_that_merely_look_like_a_vms_are_fine(container: str) -> None:
    assert call(CNI_CONTAINERID=container)[0].code == 0


def test_the_log_gets_text_whatever_the_environment_was() -> None:
    lines: list[dict[str, object]] = []
    env = {**ENV, "CNI_COMMAND": "ADD\udcff", "CNI_CONTAINERID": "c\udcff"}

    def log(event: str, /, **fields: object) -> None:
        lines.append(fields)

    dispatch(env, b"{}", Recorder(), log=log)
    (line,) = lines
    assert (line["command"], line["container_id"]) == ("ADD?", "c?")
    json.dumps(line, ensure_ascii=False).encode()


def test_all_variables_that_are_missing_are_named() -> None:
    names = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")
    for verb, needed in (("ADD", names), ("CHECK", names), ("DEL", (names[0], names[2]))):
        environment: dict[str, Any] = {"CNI_COMMAND": verb, **dict.fromkeys(names)}
        answer, body = call(**environment)
        assert (answer.code, body["code"]) == (1, 4)
        assert [name for name in names if name in body["msg"]] == list(needed)


def test_details_say_what_an_error_came_from_and_what_was_noted() -> None:
    error = errors.Unavailable("the datastore is silent")
    error.__cause__ = OSError(111, "Connection refused")
    error.__cause__.__cause__ = ValueError("the datastore is silent")  # said already
    error.add_note("and: another trouble")
    _, body = call(Recorder(error))
    assert body["msg"] == "the datastore is silent"
    assert body["details"].splitlines() == [
        "and: another trouble",
        "because of ConnectionRefusedError: [Errno 111] Connection refused",
    ]
    _, body = call(Recorder(errors.Unavailable("no more to say")))
    assert "details" not in body
    _, body = call(Recorder(ValueError("x")))
    assert body["details"] == "this is a bug; its traceback is in the log"


def test_status_answers_50_for_whatever_would_keep_add_from_being_served() -> None:
    def cannot(error: Exception) -> Any:
        return lambda conf: (_ for _ in ()).throw(error)

    for error in (errors.Unavailable("x"), errors.InvalidInput("x"), errors.Unauthorized("x")):
        refused(50, "x", plugin=cannot(error), CNI_COMMAND="STATUS")
        refused(50, "x", plugin=Recorder(error), CNI_COMMAND="STATUS")
    refused(7, "x", plugin=cannot(refusals.InvalidConfig("x")), CNI_COMMAND="STATUS")
    refused(51, "x", plugin=Recorder(refusals.Impaired("x")), CNI_COMMAND="STATUS")
    refused(11, "x", plugin=Recorder(errors.Unavailable("x")), CNI_COMMAND="GC")


def test_a_chains_result_is_extended_and_one_that_is_none_is_refused_before_anything_is_done() -> (
    None
):
    conf: dict[str, Any] = {"cniVersion": "0.4.0", "name": "net", "type": "tortie"}
    before = {"interfaces": [{"name": "lo", "sandbox": "/run/netns/x"}], "ips": []}
    _, body = call(stdin=json.dumps({**conf, "prevResult": before}).encode())
    assert [one["name"] for one in body["interfaces"]] == ["lo", "cali0", "eth0"]
    assert body["ips"][0]["interface"] == 2
    results: list[Any] = [{"ips": 7}, {"interfaces": [1]}, {"ips": [{}]}, {"ip4": {"ip": "x"}}]
    for wrong in results:
        plugin = Recorder()
        stdin = json.dumps({**conf, "prevResult": wrong}).encode()
        refused(7, "prevResult", plugin=plugin, stdin=stdin)
        assert plugin.calls == []
        assert call(plugin, stdin, CNI_COMMAND="DEL")[0].code == 0, "DEL needs no result"
    old = json.dumps({**conf, "cniVersion": "0.2.0", "prevResult": before}).encode()
    refused(7, "prevResult", stdin=old)


def told(
    plugin: Any = None, **env: str | None
) -> tuple[list[dict[str, Any]], list[tuple[Any, int]]]:
    """The log's lines and what was observed of one call."""
    lines: list[dict[str, Any]] = []
    seen: list[tuple[Any, int]] = []
    body = b'{"cniVersion":"1.1.0","name":"net","type":"tortie","etcd_password":"secret"}'
    clock = iter(range(1000))
    dispatch(
        {k: v for k, v in {**ENV, **env}.items() if v is not None},
        body,
        plugin or Recorder(),
        log=lambda event, /, **fields: lines.append({"event": event, **fields}),
        observe=lambda call, code: seen.append((call, code)),
        monotonic=lambda: float(next(clock)),
    )
    return lines, seen


class Busy(Recorder):
    """A plugin whose phases take a second each."""

    def _called(self, *args: Any) -> None:
        for name in (calls.LOCK, calls.IPAM, calls.IPAM):
            with calls.phase(name):
                pass
        super()._called(*args)


def test_every_call_is_one_line_with_the_time_of_each_phase() -> None:
    for verb in ("ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"):
        lines, seen = told(CNI_COMMAND=verb)
        assert [line["event"] for line in lines] == [f"cni_{verb.lower()}"]
        assert [(call.command, code) for call, code in seen] == [(verb, 0)]
    (line,), _ = told(Busy())
    assert line == {
        "event": "cni_add",
        "container_id": "c1",
        "namespace": "default",
        "pod": "web-0",
        "pod_uid": "u",
        "network": "net",
        "duration_ms": 6000.0,
        "lock_ms": 1000.0,
        "ipam_ms": 2000.0,
    }


def test_a_refused_call_is_one_line_too_with_the_pods_name_and_the_phases() -> None:
    (line,), ((call, code),) = told(Busy(refusals.IdentityRefused("not the VM's")))
    assert (line["event"], line["command"], line["code"]) == ("cni_error", "ADD", 101)
    assert (line["namespace"], line["pod"], line["ipam_ms"]) == ("default", "web-0", 2000.0)
    assert code == 101
    counted = calls.CallMetrics()
    counted.observe(call, code)
    assert counted.refusals.value("identity") == 1
    assert counted.calls.value("ADD", "101") == 1
    text = exposition(counted.all())
    assert 'tortie_cni_phase_seconds_count{command="ADD",phase="ipam"} 1' in text
    assert 'tortie_cni_call_seconds_sum{command="ADD"} 6' in text


SECRETIVE = "IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_NAMESPACE=d;TOKEN=hush"


def test_nothing_of_stdin_or_of_a_token_is_told() -> None:
    for plugin in (Recorder(), Recorder(errors.Unavailable("x")), Recorder(ValueError("y"))):
        lines, _ = told(plugin, CNI_ARGS=SECRETIVE)
        assert "secret" not in str(lines)
        assert "hush" not in str(lines)


def test_outside_of_a_call_a_phase_is_nobodys() -> None:
    with calls.phase(calls.IPAM):
        calls.note(x=1)


def test_del_needs_no_namespace() -> None:
    assert call(CNI_COMMAND="DEL", CNI_NETNS=None)[0].code == 0
    assert call(CNI_COMMAND="DEL", CNI_NETNS="")[0].code == 0


def test_status_and_gc_need_no_container() -> None:
    for verb in ("STATUS", "GC"):
        env = {"CNI_COMMAND": verb, "CNI_PATH": "/opt/cni/bin"}
        body = b'{"cniVersion":"1.1.0","name":"net"}'
        assert dispatch(env, body, Recorder()).code == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Unavailable("x"), 11),
        (errors.Conflict("x"), 11),
        (errors.PartialCommit(1, "x"), 11),
        (errors.Compacted("x"), 11),
        (errors.InvalidInput("x"), 7),
        (errors.NoFreeAddresses("x"), 102),
        (errors.OwnerMismatch("x"), 103),
        (errors.MigrationRefused("x"), 104),
        (errors.KernelError("x"), 105),
        (errors.Unauthorized("x"), 106),
        (errors.Malformed("x"), 107),
        (errors.NotFound("x"), 100),
        (errors.AlreadyExists("x"), 100),
        (refusals.IdentityRefused("x"), 101),
        (refusals.AttachmentConflict("x"), 108),
        (refusals.CheckFailed("x"), 110),
        (refusals.NotReady("x"), 50),
        (refusals.UnknownContainer("x"), 3),
        (ValueError("x"), 999),
        (RecursionError("x"), 999),
        (MemoryError("x"), 999),
    ],
)
def test_every_error_has_its_code(error: Exception, code: int) -> None:
    refused(code, "x", plugin=Recorder(error))
    refused(code, "x", plugin=Recorder(error), CNI_COMMAND="DEL")


def test_every_error_of_ours_has_a_code() -> None:
    def kinds(kind: type[errors.TortieError]) -> list[type[errors.TortieError]]:
        return [kind, *(k for sub in kind.__subclasses__() for k in kinds(sub))]

    known = [kind for kind, _ in CODES]
    for kind in kinds(errors.TortieError):
        assert issubclass(kind, (refusals.Refusal, *known))


def test_a_bug_is_one_json_error_and_its_traceback_goes_to_the_log_only() -> None:
    lines: list[dict[str, object]] = []

    def log(event: str, /, **fields: object) -> None:
        lines.append({"event": event, **fields})

    answer = dispatch(
        ENV, b'{"cniVersion":"1.0.0","name":"n"}', Recorder(KeyError("boom")), log=log
    )
    assert json.loads(answer.stdout)["msg"] == "internal error: KeyError: 'boom'"
    assert b"Traceback" not in answer.stdout
    assert "Traceback" in str(lines[0]["traceback"])


@pytest.mark.parametrize(
    ("stdin", "code", "message"),
    [
        (b"", 6, "empty"),
        (b"  \n", 6, "empty"),
        (b"{", 6, "not JSON"),
        (b"\xff\xfe\x00", 6, "not JSON"),
        (b"[]", 6, "array"),
        (b"null", 6, "null"),
        (b"1", 6, "number"),
        (b'"x"', 6, "string"),
        (b"[" * 100_000, 6, "not JSON"),
        (b'{"name":"' + b"x" * (3 << 20) + b'"}', 6, "more than"),
        (b'{"cniVersion":"1.0.0"}', 7, "name"),
        (b'{"cniVersion":"1.0.0","name":7}', 7, "name"),
        (b'{"cniVersion":"1.0.0","name":"-x"}', 7, "name"),
        (b'{"cniVersion":"1.0.0","name":"a/b"}', 7, "name"),
        (b'{"cniVersion":["1.0.0"],"name":"n"}', 1, "cniVersion"),
        (b'{"cniVersion":7,"name":"n"}', 1, "cniVersion"),
    ],
)
def test_hostile_stdin(stdin: bytes, code: int, message: str) -> None:
    refused(code, message, stdin=stdin)
