"""Answers as Tables and as metadata: what `kubectl get` prints, computed here. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from lab.apiserver.columns import Column, columns_of
from lab.apiserver.errors import Json, bad_request
from lab.apiserver.kind import Kind
from lab.apiserver.media import View

Include = Literal["None", "Metadata", "Object"]


def include_of(query: Mapping[str, str]) -> Include:
    """What each row carries of its object. Raises 400."""
    wanted = query.get("includeObject", "Metadata") or "Metadata"
    for known in ("None", "Metadata", "Object"):
        if wanted == known:
            return known
    raise bad_request(f"unrecognized includeObject value: {wanted!r}")


class Viewer:
    """Shows one resource's objects as a client wants them; a watch keeps one for its time."""

    def __init__(self, kind: Kind, view: View, include: Include = "Metadata") -> None:
        self._kind = kind
        self._view = view
        self._include = include
        self._columns = columns_of(kind)
        self._described = False

    def show(self, body: Json, now: datetime) -> Json:
        """An object, or a list of the kind."""
        listed = body.get("kind") == self._kind.list_kind
        if self._view.form == "":
            return body
        if self._view.form != "Table":
            return self._metadata_list(body) if listed else self._metadata(body)
        meta = body.get("metadata") or {}
        kept = ("resourceVersion", "continue", "remainingItemCount")
        items = body["items"] if listed else [body]
        return self._table({k: meta[k] for k in kept if k in meta}, items, now)

    def event(self, event: Json, now: datetime) -> Json:
        """A watch event; only the first Table describes its columns."""
        if event["type"] == "ERROR":
            return event
        shown = event["object"]
        if event["type"] != "BOOKMARK":
            shown = self.show(shown, now)
        elif self._view.form == "Table":
            shown = self._table(shown["metadata"], (), now)
        elif self._view.form:
            shown = self._metadata(shown)
        if self._view.form == "Table":
            if self._described:
                shown = {**shown, "columnDefinitions": None}
            self._described = True
        return {**event, "object": shown}

    def _table(self, meta: Json, items: Iterable[Json], now: datetime) -> Json:
        return {
            "kind": "Table",
            "apiVersion": self._view.api_version,
            "metadata": meta,
            "columnDefinitions": [_definition(column) for column in self._columns],
            "rows": [self._row(body, now) for body in items],
        }

    def _row(self, body: Json, now: datetime) -> Json:
        row: Json = {"cells": [_cell(column, body, now) for column in self._columns]}
        if self._include != "None":
            row["object"] = body if self._include == "Object" else self._metadata(body)
        return row

    def _metadata(self, body: Json) -> Json:
        return {
            "kind": "PartialObjectMetadata",
            "apiVersion": self._view.api_version,
            "metadata": body.get("metadata") or {},
        }

    def _metadata_list(self, body: Json) -> Json:
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": self._view.api_version,
            "metadata": body["metadata"],
            "items": [self._metadata(item) for item in body["items"]],
        }


def _cell(column: Column, body: Json, now: datetime) -> Any:
    """A cell; objects have no schema here, so what a column reads may be of any shape."""
    try:
        return column.cell(body, now)
    except (AttributeError, TypeError, ValueError, KeyError):
        return "<invalid>"


def _definition(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "type": column.type,
        "format": "name" if column.name == "Name" else "",
        "description": "",
        "priority": column.priority,
    }
