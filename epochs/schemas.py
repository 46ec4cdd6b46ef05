"""Avro values in the single-object encoding, and the schemas known to this version.

A value begins with `C3 01` and the little-endian CRC-64-AVRO fingerprint of the
writer's schema, so a reader needs no registry. A schema file is never edited: a
new version is a new file beside it, and an old fingerprint stays readable for ever.

Source: Apache Avro specification 1.12, "Single-object encoding".
"""

from __future__ import annotations

import json
from importlib.resources import files
from io import BytesIO
from typing import Any, NamedTuple

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

_MARKER = b"\xc3\x01"
_HEADER_BYTES = len(_MARKER) + 8


class Undecodable(ValueError):
    """The bytes are no value of ours, or not in the one form that we accept."""


class UnknownFingerprint(ValueError):
    """The value's schema is not known here: a newer version wrote it."""


class Schema(NamedTuple):
    """A schema of the registry.

    Attributes:
        name: The record's name, such as `epochfence.Claim`.
        header: What every value of this schema begins with.
        parsed: The schema in fastavro's form.
    """

    name: str
    header: bytes
    parsed: Any


def _load(file_name: str) -> Schema:
    text = (files("epochfence.epochs") / file_name).read_text("utf-8")
    source = json.loads(text)
    # fastavro prints the fingerprint's bytes in the order in which they travel.
    crc = bytes.fromhex(fingerprint(to_parsing_canonical_form(source), "CRC-64-AVRO"))
    return Schema(
        f"{source['namespace']}.{source['name']}", _MARKER + crc, parse_schema(source)
    )


CLAIM = _load("claim-1.avsc")
EPOCH_START_ROW = _load("epoch-start-1.avsc")

_KNOWN = {schema.header: schema for schema in (CLAIM, EPOCH_START_ROW)}


def encode(schema: Schema, record: dict[str, Any]) -> bytes:
    """The single-object encoding of `record`."""
    buffer = BytesIO()
    buffer.write(schema.header)
    schemaless_writer(buffer, schema.parsed, record)
    return buffer.getvalue()


def decode(value: bytes) -> tuple[Schema, dict[str, Any]]:
    """The schema and the record of a value.

    Avro libraries differ on odd input (blocks of negative length, numbers with
    spare bytes, trailing data), so a value counts only in the form that `encode`
    gives it.

    Raises:
        Undecodable: Not a value of ours, damaged, or in another form.
        UnknownFingerprint: `C3 01` and a fingerprint that is not known here.
    """
    header = value[:_HEADER_BYTES]
    if len(header) < _HEADER_BYTES or not header.startswith(_MARKER):
        raise Undecodable("it is not in Avro's single-object encoding")
    schema = _KNOWN.get(header)
    if schema is None:
        raise UnknownFingerprint(
            f"its schema has the fingerprint {header[len(_MARKER) :].hex()}, which "
            f"this version does not know. A newer version of epochfence wrote it: "
            f"upgrade this one. (If it is garbage, write a tombstone, a null value, "
            f"under its key, and wait for the cleaner)"
        )
    buffer = BytesIO(value)
    buffer.seek(_HEADER_BYTES)
    try:
        record: dict[str, Any] = schemaless_reader(buffer, schema.parsed, None)  # type: ignore[assignment]
        again = encode(schema, record)
    except Exception as error:  # fastavro raises many types for damaged bytes
        raise Undecodable(f"it does not decode as {schema.name}: {error!r}") from error
    if again != value:
        raise Undecodable(f"it is not {schema.name} in its one accepted form")
    return schema, record
