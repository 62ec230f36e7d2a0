"""A CRD's structural schema applied to an object: unknown fields, defaults, refusals. Pure.

Of OpenAPI it knows what the definitions in `conf/crds/` use; of CEL the one rule
`self == oldSelf`.
Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions".
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.apiserver import errors
from lab.apiserver.errors import Json, Refusal
from lab.apiserver.kind import Kind

Schema = Mapping[str, Any]
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}
_ROOT = ("apiVersion", "kind", "metadata")


@dataclass(slots=True)
class FieldValidation:
    """What a request wants done about fields the schema does not have (`fieldValidation=`)."""

    mode: str = "Warn"
    warnings: list[str] = field(default_factory=list)


def conform(kind: Kind, body: Json, old: Json | None, wish: FieldValidation | None) -> Json:
    """An object without unknown fields and with defaults. Raises 400 (strict) and 422."""
    name = str(body["metadata"].get("name") or "")
    if kind.only_name and name not in ("", kind.only_name):
        why = f'Invalid value: "{name}": must be "{kind.only_name}"'
        raise errors.invalid(kind.resource, kind.kind, name, "metadata.name", why)
    if kind.schema is None:
        return body
    unknown: list[str] = []
    content = _pruned(kind.schema, {k: v for k, v in body.items() if k not in _ROOT}, "", unknown)
    texts = [f'unknown field "{path}"' for path in unknown]
    if texts and wish is not None and wish.mode == "Strict":
        raise errors.bad_request(
            f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {', '.join(texts)}"
        )
    if wish is not None and wish.mode == "Warn":
        wish.warnings.extend(text for text in texts if text not in wish.warnings)
    content = _defaulted(kind.schema, content)
    before = None if old is None else {k: v for k, v in old.items() if k not in _ROOT}
    found = list(_violations(kind.schema, content, before, ""))
    if found:
        raise errors.refused(kind.resource, kind.kind, name, found)
    return {**{k: body[k] for k in _ROOT}, **content}


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _pruned(schema: Schema, value: Any, path: str, unknown: list[str]) -> Any:
    """The value without fields the schema lacks; their paths are added to `unknown`."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    properties = schema.get("properties")
    if isinstance(value, dict) and properties is not None:
        unknown.extend(_below(path, key) for key in value if key not in properties)
        return {
            key: _pruned(properties[key], inner, _below(path, key), unknown)
            for key, inner in value.items()
            if key in properties
        }
    if isinstance(value, list) and "items" in schema:
        return [
            _pruned(schema["items"], inner, f"{path}[{index}]", unknown)
            for index, inner in enumerate(value)
        ]
    return value


def _defaulted(schema: Schema, value: Any) -> Any:
    """The value with the defaults of absent (or null) fields."""
    if not isinstance(value, dict):
        return value
    result = dict(value)
    for key, inner in schema.get("properties", {}).items():
        if result.get(key) is None and "default" in inner:
            result[key] = copy.deepcopy(inner["default"])
        if key in result:
            result[key] = _defaulted(inner, result[key])
    return result


def _violations(schema: Schema, value: Any, old: Any, path: str) -> Iterator[Refusal]:
    if value is None and schema.get("nullable"):
        return
    wanted = schema.get("type")
    boolean = isinstance(value, bool) and wanted != "boolean"
    if wanted and (boolean or not isinstance(value, _TYPES[wanted])):
        found = _NAMES.get(type(value), "array" if isinstance(value, list) else "null")
        why = f'Invalid value: "{found}": {path} in body must be of type {wanted}: "{found}"'
        yield path, "FieldValueTypeInvalid", why
        return
    yield from _scalar_violations(schema, value, path)
    for rule in schema.get("x-kubernetes-validations", ()):
        if old is not None and value != old:
            yield path, "FieldValueInvalid", f"Invalid value: {_text(value)}: {rule['message']}"
    if isinstance(value, dict):
        yield from _object_violations(schema, value, old if isinstance(old, dict) else {}, path)
    if isinstance(value, list):
        most, least = schema.get("maxItems", len(value)), schema.get("minItems", 0)
        if len(value) > most:
            why = f"Too many: {len(value)}: must have at most {most} items"
            yield path, "FieldValueTooMany", why
        if len(value) < least:
            why = f"{path} in body should have at least {least} items"
            yield path, "FieldValueInvalid", f"Invalid value: {len(value)}: {why}"
        for index, inner in enumerate(value):
            yield from _violations(schema.get("items", {}), inner, None, f"{path}[{index}]")


def _object_violations(schema: Schema, value: Json, old: Json, path: str) -> Iterator[Refusal]:
    for key in schema.get("required", ()):
        if key not in value:
            yield _below(path, key), "FieldValueRequired", "Required value"
    known = {key: inner for key, inner in schema.get("properties", {}).items() if key in value}
    if others := schema.get("additionalProperties"):
        known |= {key: others for key in value if key not in known}
    for key, inner in known.items():
        yield from _violations(inner, value[key], old.get(key), _below(path, key))


def _scalar_violations(schema: Schema, value: Any, path: str) -> Iterator[Refusal]:
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(map(_text, schema["enum"]))
        why = f"Unsupported value: {_text(value)}: supported values: {supported}"
        yield path, "FieldValueNotSupported", why
    if "minimum" in schema and value < schema["minimum"]:
        why = f"{path} in body should be greater than or equal to {schema['minimum']}"
        yield path, "FieldValueInvalid", f"Invalid value: {value}: {why}"
    if "maximum" in schema and value > schema["maximum"]:
        why = f"{path} in body should be less than or equal to {schema['maximum']}"
        yield path, "FieldValueInvalid", f"Invalid value: {value}: {why}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        why = f"{path} in body should match '{schema['pattern']}'"
        yield path, "FieldValueInvalid", f"Invalid value: {_text(value)}: {why}"
    if schema.get("x-kubernetes-int-or-string") and (
        isinstance(value, bool) or not isinstance(value, int | str)
    ):
        why = f"{path} in body must be of type integer or string"
        yield path, "FieldValueTypeInvalid", f"Invalid value: {_text(value)}: {why}"
    if len(str(value)) < schema.get("minLength", 0):
        why = f"{path} in body should be at least {schema['minLength']} chars long"
        yield path, "FieldValueInvalid", f"Invalid value: {_text(value)}: {why}"
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        why = f"Too long: may not be more than {schema['maxLength']} bytes"
        yield path, "FieldValueTooLong", why


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
