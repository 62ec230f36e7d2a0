"""What a `KubeConfig` says right now: the token and the TLS context, and when to read again.

A kubelet rotates tokens by swapping a symlink, an installer by renaming a file over another: both
change the inode or the modification time, so one `stat` per file and call tells. A file that is
half written or briefly gone keeps the last good credentials. Private keys given inline reach
OpenSSL (which wants a path) through an anonymous memory file, never through the disk.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from libtortie.errors import InvalidInput
from libtortie.files import Stamp, stamp
from libtortie.kube import exec_plugin
from libtortie.kube.config import KubeConfig, Material, read_word, reread

LOG = logging.getLogger(__name__)
Signature = tuple[Stamp | None, ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials as read at one moment."""

    config: KubeConfig
    signature: Signature
    token: str = field(repr=False)
    tls_bytes: tuple[bytes, ...] = field(repr=False)
    tls: ssl.SSLContext | None
    expires: float | None = None
    """Wall-clock seconds from which on they are to be obtained anew; None: never."""

    def same_secrets(self, other: Credentials) -> bool:
        """Whether trying again with `other` would send the very same proof."""
        return self.token == other.token and self.same_transport(other)

    def same_transport(self, other: Credentials) -> bool:
        """Whether connections made with one serve the other."""
        return (
            self.tls_bytes == other.tls_bytes
            and self.config.server == other.config.server
            and self.config.insecure == other.config.insecure
            and self.config.tls_server_name == other.config.tls_server_name
            and self.config.proxy == other.config.proxy
        )


def signature(config: KubeConfig) -> Signature:
    """Identity of every file behind a config."""
    return tuple(stamp(path) for path in config.files())


def load(config: KubeConfig, *, fresh: bool = False) -> Credentials:
    """Read everything. Raises `InvalidInput` naming the file that is missing or malformed.

    `fresh`: what a program gave was refused, and it is asked again.
    """
    config = reread(config)
    seen = signature(config)  # before the reads: a change between the two is read again
    token = config.token
    if config.token_file is not None:
        token = _token_of(config.token_file)
    expires = None
    if config.plugin is not None:
        obtained = exec_plugin.obtain(config.plugin, _cluster_of(config), fresh=fresh)
        token, expires = obtained.token, obtained.expires
        if obtained.cert:
            pair = (Material(data=obtained.cert), Material(data=obtained.key))
            config = replace(config, client_cert=pair[0], client_key=pair[1])
    materials = [config.ca, config.client_cert, config.client_key]
    tls_bytes = tuple(b"" if item is None else item.read() for item in materials)
    tls = _context(config) if config.server.startswith("https:") else None
    return Credentials(config, seen, token, tls_bytes, tls, expires)


def _cluster_of(config: KubeConfig) -> dict[str, object]:
    """What an exec plugin may be told of the server."""
    said: dict[str, object] = {"server": config.server}
    if config.ca is not None:
        said["certificate-authority-data"] = base64.b64encode(config.ca.read()).decode()
    if config.insecure:
        said["insecure-skip-tls-verify"] = True
    if config.tls_server_name:
        said["tls-server-name"] = config.tls_server_name
    return said


def describe(credentials: Credentials, wall: Callable[[], float] = time.time) -> str:
    """What was presented, for the text of a 401: file, age, expiry; never the token."""
    config = credentials.config
    parts: list[str] = []
    source = config.token_file or (config.origin.path if config.origin else None)
    if config.plugin is not None:
        return f"credentials of exec plugin {config.plugin.command}"
    if credentials.token:
        parts.append(f"token of {source}" if source else "token")
        if source is not None:
            parts.extend(_age(source, wall()))
        parts.extend(_expiry(credentials.token, wall()))
    if config.client_cert is not None:
        where = config.client_cert.path or source
        parts.append(f"client certificate of {where}")
    return ", ".join(parts) or "no credentials"


def _token_of(path: Path) -> str:
    """A token file's content. Raises `InvalidInput` when it is empty or not a token."""
    token = read_word(path)
    if not token:
        raise InvalidInput(f"token file {path} is empty")
    if any(not "!" <= character <= "~" for character in token):
        raise InvalidInput(f"token file {path} does not hold a bearer token")
    return token


def _context(config: KubeConfig) -> ssl.SSLContext:
    """TLS as the config says: its CA alone when it names one, else the system's trust."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if config.insecure:
        LOG.warning("the certificate of %s is not verified: anybody can pose as it", config.server)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ca is not None:
        _load_ca(context, config.ca)
    else:
        context.load_default_certs()
    if config.client_cert is not None and config.client_key is not None:
        _load_pair(context, config.client_cert, config.client_key)
    return context


def _load_ca(context: ssl.SSLContext, ca: Material) -> None:
    """Trust the PEM certificates of `ca` and nothing else."""
    where = ca.path or "certificate-authority-data"
    try:
        context.load_verify_locations(cadata=ca.read().decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidInput(f"{where}: no usable PEM certificates") from error


def _load_pair(context: ssl.SSLContext, cert: Material, key: Material) -> None:
    """Present a client certificate. Raises `InvalidInput` when certificate and key do not fit."""
    where = cert.path or "client-certificate-data"
    descriptor = os.memfd_create("tortie-client-pair", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, cert.read() + b"\n" + key.read())
        # The empty password keeps OpenSSL from asking a terminal for an encrypted key's.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    except (ssl.SSLError, ValueError, OSError) as error:
        raise InvalidInput(f"{where}: not a matching pair of PEM certificate and key") from error
    finally:
        os.close(descriptor)


def _age(path: Path, now: float) -> list[str]:
    """How long ago a file was written."""
    try:
        written = path.stat().st_mtime
    except OSError:
        return ["file now missing"]
    return [f"written {_span(now - written)} ago"]


def _expiry(token: str, now: float) -> list[str]:
    """What a JSON web token says of its own validity; not verified, for a person's eyes."""
    pieces = token.split(".")
    if len(pieces) != 3:
        return []
    try:
        padded = pieces[1] + "=" * (-len(pieces[1]) % 4)
        claims = json.loads(base64.urlsafe_b64decode(padded))
        expires, begins = claims.get("exp"), claims.get("nbf")
    except (ValueError, AttributeError, RecursionError):
        return []
    if isinstance(begins, int | float) and begins > now:
        return [f"not valid for another {_span(begins - now)} by this node's clock"]
    if isinstance(expires, int | float):
        left = expires - now
        return [f"expires in {_span(left)}" if left > 0 else f"expired {_span(-left)} ago"]
    return []


def _span(seconds: float) -> str:
    """A duration for people."""
    whole = max(0, int(seconds))
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"
