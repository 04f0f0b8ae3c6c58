"""Read the body of a request: bounded in size and time before it is parsed, after inflation too."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from stepwell.errors import LimitExceeded, Problem, StepwellError
from stepwell.model.limits import Limits
from stepwell.model.value import parse
from stepwell.web.problem import HttpProblem

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["convert", "form_fields", "form_of", "read_body", "read_json"]

_FORM_BYTES = 512 * 1024
_FORM_SECONDS = 30.0


async def read_body(request: Request, most_bytes: int, seconds: float) -> bytes:
    """Return the body. Raise ``HttpProblem`` if it is too large, too slow, or compressed in an unknown way."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate"):
        raise HttpProblem("unsupported_media_type", f"Content-Encoding {encoding!r} is not known here; use gzip, deflate or none")
    length = request.headers.get("content-length")
    if length is not None and length.isdigit() and int(length) > most_bytes:
        raise _too_large(most_bytes)
    inflate = None if encoding == "identity" else zlib.decompressobj(31 if encoding == "gzip" else 15)
    chunks: list[bytes] = []
    size = received = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                received += len(chunk)
                if received > most_bytes:
                    raise _too_large(most_bytes)
                # Inflate no further than one byte over the limit: a gzip bomb is refused before it unfolds.
                data = chunk if inflate is None else inflate.decompress(chunk, most_bytes - size + 1)
                size += len(data)
                if size > most_bytes:
                    raise _too_large(most_bytes)
                chunks.append(data)
    except TimeoutError:
        raise HttpProblem(
            "timeout", f"the body did not arrive within {seconds:g} seconds", headers={"Connection": "close"}
        ) from None
    except zlib.error:
        raise HttpProblem("malformed", f"the body is not {encoding}") from None
    if inflate is not None and received and not inflate.eof:
        raise HttpProblem("malformed", f"the {encoding} body is cut off")
    return b"".join(chunks)


def _too_large(most_bytes: int) -> HttpProblem:
    return HttpProblem("too_large", f"the body has more than {most_bytes:,} bytes", headers={"Connection": "close"})


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of an HTML form that was sent with this request; of a repeated field, the last one."""
    return dict(await form_fields(request))


async def form_fields(request: Request) -> list[tuple[str, str]]:
    """Return the fields of an HTML form in order. A second call returns the same."""
    known: list[tuple[str, str]] | None = getattr(request.state, "form", None)
    if known is None:
        data = await read_body(request, _FORM_BYTES, _FORM_SECONDS)
        try:
            known = parse_qsl(data.decode("utf-8"), keep_blank_values=True, max_num_fields=200, errors="strict")
        except ValueError:
            raise HttpProblem("malformed", "the form cannot be read") from None
        request.state.form = known
    return known


async def read_json(request: Request, kind: Any, most_bytes: int, seconds: float, *, is_optional: bool) -> Any:
    """Return the JSON body as an instance of ``kind``."""
    data = await read_body(request, most_bytes, seconds)
    if not data and is_optional:
        return kind()
    media = request.headers.get("content-type", "").partition(";")
    charset = media[2].lower().replace(" ", "").replace('"', "")
    if media[0].strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise HttpProblem("unsupported_media_type", "send the body as JSON, with Content-Type: application/json")
    try:
        value = parse(data.decode("utf-8"), Limits(value_bytes=most_bytes), what="the body")
    except UnicodeDecodeError:
        raise HttpProblem("malformed", "the body is not UTF-8") from None
    except LimitExceeded:
        raise
    except StepwellError as error:
        raise HttpProblem("malformed", error.message) from None
    return convert(value, kind)


def convert(value: Any, kind: Any, *, is_text: bool = False, what: str = "body") -> Any:
    """Return a plain value as an instance of ``kind``. Raise ``HttpProblem`` (422) that points at the fault.

    - ``is_text``: the value's parts are texts of a query, from which numbers and booleans are read.
    """
    try:
        return msgspec.convert(value, kind, strict=not is_text)
    except msgspec.ValidationError as error:
        detail, _, where = str(error).partition(" - at `$")
        pointer = where.rstrip("`").replace("[...]", "/*").replace(".", "/").replace("[", "/").replace("]", "")
        detail = detail.replace("Object contains", "there is an").replace("Object missing", "there is no")
        raise HttpProblem("invalid", f"{what}: {detail}", faults=[Problem("invalid", detail, pointer)]) from None
