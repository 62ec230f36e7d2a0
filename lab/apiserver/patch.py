"""A JSON patch as the API answers it: 400 for its form, 422 for its failure."""

from __future__ import annotations

from typing import Any

from lab.apiserver.errors import ApiError, bad_request
from libtortie import patches


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902: all operations in order, or `ApiError`."""
    try:
        return patches.json_patch(target, operations)
    except patches.PatchMalformed as error:
        raise bad_request(str(error)) from error
    except patches.PatchError as error:
        said = f"the server rejected our request due to an error: {error}"
        raise ApiError(422, "Invalid", said) from error
