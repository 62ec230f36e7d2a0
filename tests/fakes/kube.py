"""An in-memory Kubernetes client: the lab API server's verbs without HTTP, and faults to inject.

It promises what `libtortie.kube.port.KubeClient` does and is held to the same contract suite as
the real client. Objects are put as views or as dicts; namespaces need not exist.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from lab.apiserver.api import Api
from lab.apiserver.errors import ApiError
from lab.apiserver.kinds import Kind
from lab.apiserver.watching import WatchOptions, watch
from libtortie import errors
from libtortie.kube import replies
from libtortie.kube.lines import decode_line
from libtortie.kube.objects import KubeObject
from libtortie.kube.port import Applied, Bookmark, Gone, PatchType, at_once

T = TypeVar("T", bound=KubeObject)
JsonPatch = list[Any]


class FakeKube:
    """`port.KubeClient`, plus `put`, `remove`, `fail`, `cut_watches`, `compact`, `hide`."""

    def __init__(self, *objects: KubeObject, bookmark_interval: float = 0.05) -> None:
        self.api = Api(namespaces_must_exist=False)
        self.server = "fake://kube"
        self.calls: list[tuple[str, str]] = []
        self._bookmark_interval = bookmark_interval
        self._lock = threading.Lock()
        self._failures: list[tuple[str, str, Callable[[], Exception]]] = []
        self._cut: tuple[object, errors.TortieError | None] = (object(), None)
        for found in objects:
            self.put(found)

    # --- the test's side -----------------------------------------------------------------------

    def put(
        self, found: KubeObject | Mapping[str, Any], model: type[KubeObject] | None = None
    ) -> None:
        """Store an object whole, status and UID included, whether or not it existed.

        A dict needs its `model`. A missing UID is made up; the resourceVersion is always ours.
        """
        if isinstance(found, KubeObject):
            model = type(found)
            body = found.model_dump(by_alias=True, exclude_none=True, mode="json")
        else:
            body = json.loads(json.dumps(found))
        if model is None:
            raise TypeError("a dict needs its model")
        kind = self._kind(model)
        meta = body.setdefault("metadata", {})
        namespace = meta.get("namespace") or ""
        if not namespace:
            meta.pop("namespace", None)
        body |= {"apiVersion": kind.api_version, "kind": kind.kind}
        key = (namespace, meta["name"])
        old = self.api.store.get(kind.resource, key)
        if not meta.get("uid"):
            meta["uid"] = old["metadata"]["uid"] if old else f"uid-{kind.plural}-{'-'.join(key)}"
        expected = None if old is None else old["metadata"]["resourceVersion"]
        self.api.store.put(kind.resource, key, body, expected=expected)

    def remove(self, model: type[KubeObject], name: str, namespace: str = "") -> None:
        """Remove an object at once, whatever its finalizers. Raises `KeyError` if absent."""
        kind = self._kind(model)
        old = self.api.store.get(kind.resource, (namespace, name))
        if old is None:
            raise KeyError(f"{kind.resource} {namespace}/{name}")
        version = old["metadata"]["resourceVersion"]
        self.api.store.remove(kind.resource, (namespace, name), expected=version)

    def fail(
        self,
        error: Exception,
        *,
        verb: str = "",
        plural: str = "",
        times: int = 1,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """The next `times` calls that match raise `error`, each once `meanwhile` was done."""

        def failure() -> Exception:
            meanwhile()
            return error

        with self._lock:
            self._failures.extend([(verb, plural, failure)] * times)

    def heal(self) -> None:
        """No injected failure is left."""
        with self._lock:
            self._failures.clear()

    def cut_watches(self, error: errors.TortieError | None = None) -> None:
        """End every open watch: quietly, or with an error."""
        self._cut = (object(), error)
        self.api.store.wake()

    def compact(self) -> None:
        """Forget history: watches from before raise `Compacted`."""
        self.api.store.compact()

    def hide(self, group: str) -> None:
        """Stop serving a group, as if its CRDs were not installed."""
        self.api.catalogue.hide(group)

    def offer(self, group: str) -> None:
        """Serve a group again."""
        self.api.catalogue.offer(group)

    # --- the client's side ---------------------------------------------------------------------

    def get(self, model: type[T], name: str, namespace: str = "") -> T:
        """See the port."""
        body = self._call("get", model, name, lambda k: self.api.get(k, namespace, name))
        return replies.decode(model, body, self._context("get", model, name))

    def list(
        self,
        model: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> tuple[tuple[T, ...], str]:
        """See the port."""
        body = self._call(
            "list",
            model,
            "",
            lambda k: self.api.list(
                k, namespace, label_selector=label_selector, field_selector=field_selector
            ),
        )
        context = self._context("list", model, "")
        return replies.items(model, body, context), replies.list_meta(body, context)[0]

    def pages(
        self, model: type[T], namespace: str = "", *, before: Callable[[], None] = at_once
    ) -> Iterator[tuple[tuple[T, ...], str]]:
        """See the port: all in one."""
        before()
        yield self.list(model, namespace)

    def create(self, model: type[T], body: Mapping[str, Any]) -> T:
        """As `HttpKubeClient.create`."""
        meta = body.get("metadata") or {}
        name, namespace = str(meta.get("name") or ""), str(meta.get("namespace") or "")
        made = self._call("create", model, name, lambda k: self.api.create(k, namespace, body))
        return replies.decode(model, made, self._context("create", model, name))

    def update(self, model: type[T], body: Mapping[str, Any], *, subresource: str = "") -> T:
        """As `HttpKubeClient.update`."""
        meta = body["metadata"]
        name, namespace = meta["name"], meta.get("namespace", "")
        new = self._call(
            "update",
            model,
            name,
            lambda k: self.api.update(k, namespace, name, body, subresource=subresource),
        )
        return replies.decode(model, new, self._context("update", model, name))

    def patch(
        self,
        model: type[T],
        name: str,
        namespace: str,
        body: Mapping[str, Any] | JsonPatch,
        *,
        patch_type: PatchType = PatchType.MERGE,
        subresource: str = "",
    ) -> T:
        """See the port."""
        new = self._call(
            "patch",
            model,
            name,
            lambda k: self.api.patch(
                k, namespace, name, body, content_type=patch_type.value, subresource=subresource
            ),
        )
        return replies.decode(model, new, self._context("patch", model, name))

    def delete(
        self,
        model: type[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        grace_seconds: int | None = None,
    ) -> None:
        """As `HttpKubeClient.delete`."""
        options: dict[str, Any] = {"preconditions": {"uid": uid}} if uid else {}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        self._call("delete", model, name, lambda k: self.api.delete(k, namespace, name, options))

    def watch(
        self,
        model: type[T],
        namespace: str = "",
        *,
        resource_version: str = "",
        label_selector: str = "",
        field_selector: str = "",
        stop: threading.Event | None = None,
    ) -> Iterator[Applied[T] | Gone[T] | Bookmark]:
        """See the port."""
        context = self._context("watch", model, "")
        kind = self._call("watch", model, "", lambda k: k)
        test = self._call(
            "", model, "", lambda k: self.api.test(k, namespace, label_selector, field_selector)
        )
        cut = self._cut
        options = WatchOptions(resource_version, 60.0, True, self._bookmark_interval)

        def ended() -> bool:
            return self._cut is not cut or (stop is not None and stop.is_set())

        for event in watch(self.api.store, kind, test, options, ended):
            if ended():
                break
            found = decode_line(json.dumps(event).encode(), context)
            if found.type == "BOOKMARK":
                yield Bookmark(found.resource_version)
            elif found.type == "DELETED":
                yield Gone(replies.decode(model, found.object, context))
            else:
                yield Applied(replies.decode(model, found.object, context))
        if self._cut is not cut and self._cut[1] is not None:
            raise self._cut[1]

    # --- inside --------------------------------------------------------------------------------

    def _kind(self, model: type[KubeObject]) -> Kind:
        api = model.api
        return self.api.kind(api.group, api.version, api.plural)

    def _context(self, verb: str, model: type[KubeObject], name: str) -> str:
        return f"{verb} {model.api.plural} {name}".strip() + f" at {self.server}"

    def _call(
        self, verb: str, model: type[KubeObject], name: str, act: Callable[[Kind], Any]
    ) -> Any:
        """Count, fail if so injected, act; API errors become the port's."""
        if verb:
            self.calls.append((verb, model.api.plural))
            self._suffer(verb, model.api.plural)
        try:
            return act(self._kind(model))
        except ApiError as error:
            body = json.dumps(error.status()).encode()
            raise replies.failure(
                error.code,
                body,
                creating=verb == "create",
                retry_after=str(error.retry_after or ""),
                context=self._context(verb, model, name),
            ) from error

    def _suffer(self, verb: str, plural: str) -> None:
        failure = self._next_failure(verb, plural)
        if failure is not None:
            raise failure()

    def _next_failure(self, verb: str, plural: str) -> Callable[[], Exception] | None:
        with self._lock:
            for position, (wanted, kind, failure) in enumerate(self._failures):
                if wanted in ("", verb) and kind in ("", plural):
                    del self._failures[position]
                    return failure
        return None
