"""Multipart forms: fields, which arrive as strings, checked by the schema of a body, and files."""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import Request as HttpRequest

from triptych.serve.errors import ApiError
from triptych.serve.limits import ServeLimits

T = TypeVar("T", bound=BaseModel)

_MAX_FIELDS = 100
_LIST, _MAPPING = re.compile(r"(\w+)\[\]"), re.compile(r"(\w+)\[(\w+)\]")
"""How clients write lists and mappings: "image[]", "options[gamma]"."""


async def read_form(
    http: HttpRequest, schema: type[T], files: Mapping[str, bool], limits: ServeLimits
) -> tuple[T, dict[str, list[bytes]]]:
    """The fields of a form and its files by name; `files` are the names, and whether there must be one."""
    content_type = http.headers.get("content-type", "")
    if not content_type.lower().startswith("multipart/form-data"):
        raise ApiError(415, f"expected multipart/form-data, got {content_type[:100]!r}.")
    values: dict[str, list[str]] = {}
    uploads: dict[str, list[bytes]] = {name: [] for name in files}
    async with http.form(max_files=limits.media + 1, max_fields=_MAX_FIELDS) as form:
        for key, value in form.multi_items():
            name = _LIST.sub(r"\1", key)
            if isinstance(value, UploadFile) != (name in files):
                expected = "a file" if name in files else "text"
                raise ApiError(400, f"{key[:100]}: expected {expected}.", param=key[:100])
            if isinstance(value, UploadFile):
                uploads[name].append(await value.read())
            else:
                values.setdefault(key, []).append(value)
    for name, is_needed in files.items():
        if is_needed and not uploads[name]:
            raise ApiError(400, f"{name}: expected a file.", param=name)
    try:
        return schema.model_validate(_nested(values)), uploads
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None


def _nested(values: Mapping[str, list[str]]) -> dict[str, Any]:
    """Fields with their lists and mappings."""
    fields: dict[str, Any] = {}
    for key, given in values.items():
        is_list, in_mapping = _LIST.fullmatch(key), _MAPPING.fullmatch(key)
        name = is_list[1] if is_list else in_mapping[1] if in_mapping else key
        value = given if is_list else {in_mapping[2]: _number_or_text(given[0])} if in_mapping else given[0]
        if isinstance(value, dict) and isinstance(fields.get(name), dict):
            fields[name] |= value
        elif name in fields or (len(given) > 1 and not is_list):
            raise ApiError(400, f"{name[:100]}: given twice.", param=name[:100])
        else:
            fields[name] = value
    return fields


def _number_or_text(value: str) -> int | float | str:
    """A value of a mapping, for which no schema says what it is."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


def form_schema(schema: type[BaseModel], files: Mapping[str, bool]) -> dict[str, Any]:
    """The form as the OpenAPI page shows it."""
    described = schema.model_json_schema()
    described["properties"] |= {name: {"type": "string", "format": "binary"} for name in files}
    described["required"] = [*described.get("required", []), *(name for name, is_needed in files.items() if is_needed)]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": described}}}}
