"""Resources as people write them in files: found, made whole, and refused with all that is wrong.

Nothing here is stored, and what is wrong in one document does not hide what is in another. Pure
but for the files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from libtortie.access import parse_documents, text_of
from libtortie.errors import InvalidInput
from libtortie.model.keys import Kind
from libtortie.model.resources import Resource
from libtortie.model.written import checked, revision_of
from libtortie.wording import is_text, meant, visible

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"


@dataclass(frozen=True, slots=True)
class Document:
    """One resource as it is written, and where."""

    where: str
    body: Any


@dataclass(frozen=True, slots=True)
class Wanted:
    """A resource to be stored. `revision` is the one it insists on, "" for any."""

    where: str
    resource: Resource
    revision: str = ""

    @property
    def name(self) -> str:
        """`NetworkPolicy(shop/allow-web)`, as Calico's errors have it."""
        return called(self.resource)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where documents come from: files, directories, `-` for standard input."""

    names: tuple[str, ...]
    recursive: bool = False
    skip_empty: bool = False


def documents(sources: Sources) -> Iterator[Document]:
    """What is in files. Lists are what is in them. Raises `InvalidInput` naming the file.

    A file without a document is an error, unless empty ones are to be skipped.
    """
    for path in sources.names:
        for name in _files(path, sources.recursive):
            where = "standard input" if name == STDIN else name
            found = [one for one in parse_documents(_text(name), where) if one is not None]
            if not found and not sources.skip_empty:
                raise InvalidInput(f"{where}: no resource is in it; --skip-empty passes over it")
            for number, body in enumerate(found, start=1):
                at = f"{where}, document {number}" if len(found) > 1 else where
                yield from _items(Document(at, body))


def read(found: Iterable[Document], namespace: str) -> tuple[list[Wanted], list[str]]:
    """The resources, whole; and all that is wrong with them or with others, a line each."""
    wanted: list[Wanted] = []
    problems: list[str] = []
    for document in found:
        try:
            kind = kind_of(document)
        except InvalidInput as error:
            problems.append(str(error))
            continue
        resource, wrong = checked(kind, document.body, namespace)
        name = name_in(kind, document.body, namespace)
        problems += [f"{document.where}: {name}: {one}" for one in wrong]
        if resource is not None:
            wanted.append(Wanted(document.where, resource, revision_of(document.body)))
    return wanted, [visible(one) for one in (*problems, *_doubled(wanted))]


def kind_of(document: Document) -> Kind:
    """The kind of a document. Raises `InvalidInput` for what is no resource of ours."""
    body, where = document.body, document.where
    if not isinstance(body, Mapping):
        raise InvalidInput(f"{where}: expected a resource, got {type(body).__name__}")
    try:
        return Kind(str(body.get("kind")))
    except ValueError:
        if body.get("kind") is None:
            raise InvalidInput(f"{where}: kind: is missing") from None
        hint = meant(str(body.get("kind")), Kind) or f" is none of {', '.join(Kind)}"
        raise InvalidInput(f"{where}: kind: {body.get('kind')!r}{hint}") from None


def called(resource: Resource) -> str:
    """`IPPool(pool-a)`, `NetworkPolicy(shop/allow-web)`: Calico's words for a resource."""
    meta = resource.metadata
    full = f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
    return f"{resource.kind}({full})"


def name_in(kind: Kind, body: Mapping[str, Any], namespace: str) -> str:
    """`NetworkPolicy shop/allow-web`, of a document that may be wrong."""
    meta = body.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    name = str(meta.get("name") or "without a name")
    if not kind.namespaced:
        return f"{kind} {name}"
    return f"{kind} {meta.get('namespace') or namespace or 'default'}/{name}"


def _doubled(wanted: Iterable[Wanted]) -> list[str]:
    """A resource that is written twice: which one is meant?"""
    seen: dict[object, str] = {}
    problems = []
    for one in wanted:
        first = seen.setdefault(one.resource.key, one.where)
        if first != one.where:
            problems.append(f"{one.where}: {one.name} is in {first}, too")
    return problems


def _files(path: str, recursive: bool) -> Iterator[str]:
    """A file itself; the manifests of a directory, in order of their names."""
    if path == STDIN or not Path(path).is_dir():
        yield path
        return
    if not is_text(path):
        raise InvalidInput(f"{path!r} is not UTF-8")
    pattern = "**/*" if recursive else "*"
    try:
        inside = sorted(
            one for one in Path(path).glob(pattern) if one.suffix in SUFFIXES and one.is_file()
        )
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    if not inside:
        raise InvalidInput(f"{path}: no file in it ends in {', '.join(SUFFIXES)}")
    yield from map(str, inside)


def _text(name: str) -> str:
    if name != STDIN:
        return text_of(Path(name))
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"standard input: not UTF-8 (byte {error.start})") from error


def _items(document: Document) -> Iterator[Document]:
    body = document.body
    listed = isinstance(body, Mapping) and str(body.get("kind", "")).endswith("List")
    items = body.get("items") or [] if listed else body if isinstance(body, list) else None
    if not isinstance(items, list):
        yield document
        return
    for number, one in enumerate(items, start=1):
        yield Document(f"{document.where}, item {number}", one)
