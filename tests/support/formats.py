"""Orders in the formats of a schema registry, by confluent's own (de)serialisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import (
    JSONDeserializer,
    JSONSerializer,
)
from confluent_kafka.schema_registry.protobuf import (
    ProtobufDeserializer,
    ProtobufSerializer,
)
from confluent_kafka.serialization import SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


class Format(NamedTuple):
    """Turns orders, which are numbers, into bytes and back; null stays null."""

    encode: Callable[[int, SerializationContext], bytes | None]
    decode: Callable[[bytes | None, SerializationContext], int | None]


# The library's annotations do not say how these are made.
_AvroSerializer: Any = AvroSerializer
_AvroDeserializer: Any = AvroDeserializer
_JSONSerializer: Any = JSONSerializer
_JSONDeserializer: Any = JSONDeserializer
_ProtobufSerializer: Any = ProtobufSerializer
_ProtobufDeserializer: Any = ProtobufDeserializer


def avro(registry: Any) -> Format:
    schema = '{"type":"record","name":"Order","fields":[{"name":"n","type":"int"}]}'
    out, back = _AvroSerializer(registry, schema), _AvroDeserializer(registry)

    def encode(n: int, context: SerializationContext) -> bytes | None:
        data: bytes | None = out({"n": n}, context)
        return data

    def decode(data: bytes | None, context: SerializationContext) -> int | None:
        order: Any = back(data, context)
        return None if order is None else order["n"]

    return Format(encode, decode)


def json(registry: Any) -> Format:
    schema = (
        '{"type":"object","title":"Order","properties":{"n":{"type":"integer"}},'
        '"required":["n"]}'
    )
    out = _JSONSerializer(schema, registry)
    back = _JSONDeserializer(None, schema_registry_client=registry)

    def encode(n: int, context: SerializationContext) -> bytes | None:
        data: bytes | None = out({"n": n}, context)
        return data

    def decode(data: bytes | None, context: SerializationContext) -> int | None:
        order: Any = back(data, context)
        return None if order is None else order["n"]

    return Format(encode, decode)


def protobuf(registry: Any) -> Format:
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="orders", syntax="proto3"
    )
    field: Any = file.message_type.add(name="Order").field.add(name="n", number=1)
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_INT32
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order_type: Any = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("orders.Order")
    )
    settings = {"use.deprecated.format": False}
    out = _ProtobufSerializer(order_type, registry, settings)
    back = _ProtobufDeserializer(order_type, settings, registry)

    def encode(n: int, context: SerializationContext) -> bytes | None:
        data: bytes | None = out(order_type(n=n), context)
        return data

    def decode(data: bytes | None, context: SerializationContext) -> int | None:
        order: Any = back(data, context)
        return None if order is None else order.n

    return Format(encode, decode)
