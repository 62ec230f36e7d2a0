"""Another program's IPAM, called as a CNI plugin calls it (CNI spec, section 4).

The program gets the whole configuration, keys that are unknown to us too, and answers for the
addresses it gives: it is asked to take them back whenever an ADD fails. Calico's two special
subnets stand for the node's podCIDRs. A program older than the configuration's CNI version is
called in the newest version it speaks. One that hangs is killed with all it started.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

from cni_plugin import foreign_json
from cni_plugin.calls import note
from cni_plugin.child import Finished
from cni_plugin.errors import InvalidConfig, NotReady, Refusal
from cni_plugin.skel import CmdArgs
from cni_plugin.types import SUPPORTED_VERSIONS, NetConf, short
from libtortie.errors import InvalidInput, TortieError, Unavailable
from libtortie.linux.port import IPInterface, IPNetwork

POD_CIDR = {"usePodCidr": 4, "usePodCidrIPv6": 6}
"""Calico's names for the node's `podCIDRs` as a subnet, and their families."""

_ANYTHING = {4: "0.0.0.0/0", 6: "::/0"}
"""A subnet for calls that give no address: the program wants one that can be read."""

_BEFORE_CHECK = SUPPORTED_VERSIONS[: SUPPORTED_VERSIONS.index("0.4.0")]
_INCOMPATIBLE, _UNKNOWN_VERB, _TRY_AGAIN, _NOT_READY = 1, 4, 11, (50, 51)
_LONGEST = 300


class DelegateFailed(Refusal):
    """The other program refused, broke or answered with what cannot be read."""

    code = 109


Run = Callable[[Path, Mapping[str, str], bytes], Finished]
"""Runs a program with an environment and standard input. Raises `Unavailable`."""


@dataclass(frozen=True, slots=True)
class Given:
    """What another program's IPAM answered to ADD; `routes` and `dns` as it wrote them."""

    addresses: tuple[IPInterface, ...]
    routes: tuple[Mapping[str, Any], ...] = ()
    dns: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Delegate:
    """One call's IPAM. `pod_cidrs` asks for the node's networks, and is asked for ADD only."""

    conf: NetConf
    run: Run
    pod_cidrs: Callable[[], Sequence[IPNetwork]]

    @property
    def kind(self) -> str:
        """The program's name."""
        return self.conf.delegated

    def require(self) -> None:
        """Whether there is such a program. Raises `InvalidConfig`."""
        find(self.kind, self.conf.plugin_dirs)

    def add(self, args: CmdArgs) -> Given:
        """Ask for addresses. What an earlier, unfinished ADD of this sandbox left is given back.

        Raises `DelegateFailed`, `InvalidConfig`, `Unavailable`; what the program may have given
        then is the caller's to have taken back (`delete`).
        """
        try:
            answer = self._call("ADD", args)
        except DelegateFailed as refused:  # host-local's answer to a sandbox that has something
            try:
                self.delete(args)
            except Unavailable:
                raise refused from None  # who hangs is not waited for again
            except TortieError:
                pass
            answer = self._call("ADD", args)
        return _given(self.kind, answer)

    def delete(self, args: CmdArgs) -> None:
        """Give back what the sandbox has; nothing is success. Raises as `add`."""
        self._call("DEL", args)

    def check(self, args: CmdArgs) -> None:
        """Whether the program, if it knows the verb, still knows the sandbox. Raises as `add`."""
        self._call("CHECK", args)

    def status(self) -> None:
        """Whether it could serve ADD. A program that does not know the verb is not asked."""
        try:
            self._call("STATUS", None)
        except (DelegateFailed, InvalidConfig) as error:  # InvalidConfig: there is none
            raise NotReady(str(error)) from error

    def collect(self) -> None:
        """Pass the list of valid attachments on, to a program that knows GC. Raises as `add`."""
        self._call("GC", None)

    def _call(self, verb: str, args: CmdArgs | None) -> bytes:
        program = find(self.kind, self.conf.plugin_dirs)
        env = _environment(verb, args, self.conf)
        version = self.conf.cni_version
        if args is None and self._spoken(program, env) != version:
            return b""  # GC and STATUS came with that version
        body = self._body(verb)
        done = self._ran(program, env, _encoded(body, version))
        error = _error(done)
        if args is not None and error is not None and error["code"] == _INCOMPATIBLE:
            version = self._spoken(program, env)
            if verb == "CHECK" and version in _BEFORE_CHECK:
                return b""
            done = self._ran(program, env, _encoded(body, version))
            error = _error(done)
        if error is None:
            return done.stdout
        if args is None and error["code"] == _UNKNOWN_VERB:
            return b""
        raise _raised(self.kind, verb, error)

    def _ran(self, program: Path, env: Mapping[str, str], stdin: bytes) -> Finished:
        """Run it. What it says on standard error is told in the call's line of the log."""
        done = self.run(program, env, stdin)
        if said := done.stderr.decode(errors="replace").strip():
            note(ipam_said=said[:_LONGEST])
        return done

    def _spoken(self, program: Path, env: Mapping[str, str]) -> str:
        """The newest version that both speak, not above the configuration's."""
        done = self._ran(program, {**env, "CNI_COMMAND": "VERSION"}, b'{"cniVersion":"0.4.0"}')
        try:
            spoken = set(foreign_json.loads(done.stdout)["supportedVersions"])
        except (ValueError, TypeError, KeyError) as error:
            raise DelegateFailed(f"ipam {self.kind}: VERSION cannot be read: {error}") from None
        newest = SUPPORTED_VERSIONS.index(self.conf.cni_version)
        for version in reversed(SUPPORTED_VERSIONS[: newest + 1]):
            if version in spoken:
                return version
        raise DelegateFailed(
            f"ipam {self.kind}: it speaks no version of CNI up to {self.conf.cni_version}"
        )

    def _body(self, verb: str) -> dict[str, Any]:
        raw = dict(self.conf.raw)
        if not any(_special(raw.get("ipam"))):
            return raw
        subnets = dict(_ANYTHING)
        if verb == "ADD":
            found = self.pod_cidrs()
            subnets = {4: "", 6: ""}
            for network in reversed(found):
                subnets[network.version] = str(network)
        return {**raw, "ipam": _replaced(raw["ipam"], subnets)}


def find(name: str, directories: Sequence[str]) -> Path:
    """The program of a name in CNI_PATH. Raises `InvalidConfig`."""
    for directory in directories:
        path = Path(directory) / name
        if path.is_file() and os.access(path, os.X_OK):
            return path
    where = ":".join(directories) or "CNI_PATH, which is empty"
    raise InvalidConfig(f"ipam.type: there is no program {name!r} in {where}")


def _environment(verb: str, args: CmdArgs | None, conf: NetConf) -> dict[str, str]:
    env = {"CNI_COMMAND": verb, "CNI_PATH": ":".join(conf.plugin_dirs)}
    if args is None:
        return env
    pairs = {"IgnoreUnknown": "1", **{k: v for k, v in args.args.items() if k != "IgnoreUnknown"}}
    return {
        **env,
        "CNI_CONTAINERID": args.container_id,
        "CNI_NETNS": args.netns,
        "CNI_IFNAME": args.ifname,
        "CNI_ARGS": ";".join(f"{key}={value}" for key, value in pairs.items()),
    }


def _encoded(body: Mapping[str, Any], version: str) -> bytes:
    """The configuration in a version; a previous result says which one it is in, too."""
    out = {**body, "cniVersion": version}
    previous = out.get("prevResult")
    if isinstance(previous, dict):
        out["prevResult"] = {**previous, "cniVersion": version}
    return json.dumps(out).encode()


def _error(done: Finished) -> dict[str, Any] | None:
    """The program's error; None when it succeeded. One that cannot be read has code 0."""
    if done.status == 0:
        return None
    try:
        found = foreign_json.loads(done.stdout)
        if isinstance(found, dict) and isinstance(found.get("code"), int):
            return {"code": found["code"], "msg": found.get("msg", "")}
    except ValueError:
        pass
    said = (done.stderr or done.stdout).decode(errors="replace").strip()
    return {"code": 0, "msg": f"it ended with status {done.status}: {said[:_LONGEST]}"}


def _raised(kind: str, verb: str, error: Mapping[str, Any]) -> Exception:
    text = f"ipam {kind}: {verb}: {re.sub(r'[^ -~]+', ' ', str(error['msg']))[:_LONGEST]}"
    if error["code"] == _TRY_AGAIN:
        return Unavailable(text)
    if error["code"] in _NOT_READY and verb == "STATUS":
        return NotReady(text)
    return DelegateFailed(text + (f" (its code {error['code']})" if error["code"] else ""))


def _given(kind: str, answer: bytes) -> Given:
    """The result of an IPAM's ADD, in any version's form. Raises `DelegateFailed`."""
    try:
        body = foreign_json.loads(answer)
        texts = [item["address"] for item in body.get("ips") or ()]
        routes = list(body.get("routes") or ())
        for key in ("ip4", "ip6"):
            old = body.get(key)
            if old:
                texts.append(old["ip"])
                routes += old.get("routes") or ()
        addresses = tuple(ip_interface(str(text)) for text in texts)
        for route in routes:
            ip_network(str(route["dst"]), strict=False)
        dns = body.get("dns") or None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DelegateFailed(
            f"ipam {kind}: its result cannot be read: {short(str(error))}"
        ) from None
    if not addresses:
        raise DelegateFailed(f"ipam {kind}: it gave no address")
    return Given(addresses, tuple(routes), dns if isinstance(dns, dict) else None)


def _special(value: object) -> Iterator[str]:
    """Calico's special subnets in the section of the IPAM, wherever they are."""
    if isinstance(value, str) and value in POD_CIDR:
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _special(item)
    elif isinstance(value, list):
        for item in value:
            yield from _special(item)


def _replaced(value: Any, subnets: Mapping[int, str]) -> Any:
    """The section with the node's networks in place of their names. Raises `InvalidInput`."""
    if isinstance(value, str) and value in POD_CIDR:
        subnet = subnets[POD_CIDR[value]]
        if not subnet:
            raise InvalidInput(f"ipam: {value}: the Node has no IPv{POD_CIDR[value]} podCIDR")
        return subnet
    if isinstance(value, Mapping):
        return {key: _replaced(item, subnets) for key, item in value.items()}
    if isinstance(value, list):
        return [_replaced(item, subnets) for item in value]
    return value
