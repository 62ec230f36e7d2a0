"""What form of an answer a client accepts: plain, as a Table, or metadata only. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.apiserver.errors import ApiError

Form = Literal["", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]
_META = "meta.k8s.io"
_JSON = ("application/json", "application/*", "*/*")


@dataclass(frozen=True, slots=True)
class View:
    """How to show objects: `form` empty is plain; `version` is that of meta.k8s.io."""

    form: Form = ""
    version: str = "v1"

    @property
    def api_version(self) -> str:
        """`meta.k8s.io/v1`."""
        return f"{_META}/{self.version}"


def negotiate(accept: str) -> View:
    """The first form in an Accept header that can be served. Raises 406."""
    if not accept.strip():
        return View()
    for item in accept.split(","):
        media, *pairs = (part.strip() for part in item.split(";"))
        parameters = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if media.lower() not in _JSON:
            continue
        wanted = parameters.get("as", "")
        if not wanted:
            return View()
        if parameters.get("g") != _META or parameters.get("v") not in ("v1", "v1beta1"):
            continue
        for form in ("Table", "PartialObjectMetadata", "PartialObjectMetadataList"):
            if wanted == form:
                return View(form, parameters["v"])
    text = "only the following media types are accepted: application/json"
    raise ApiError(406, "NotAcceptable", text)
