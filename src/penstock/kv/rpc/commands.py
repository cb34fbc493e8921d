"""Which commands travel in batches, and under which name."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from penstock.proto import tikvpb_pb2 as tikvpb
from penstock.proto.services import Method, methods

SERVICE = "tikvpb.Tikv"


def _batchable() -> Mapping[str, str]:
    commands = tikvpb.BatchCommandsRequest.Request.DESCRIPTOR.fields
    fields = {f.message_type.full_name: f.name for f in commands if f.message_type is not None}
    return {
        name: fields[method.request.DESCRIPTOR.full_name]
        for name, method in methods(SERVICE).items()
        if method.request.DESCRIPTOR.full_name in fields
    }


# Method of the service -> its field in a batch, such as "KvGet" -> "Get".
BATCH_FIELDS: Mapping[str, str] = _batchable()

# The message each field holds.
BATCH_REQUESTS: Mapping[str, type[Message]] = {
    field: methods(SERVICE)[method].request for method, field in BATCH_FIELDS.items()
}


def unary(method: str) -> Method:
    """Return a unary method of the store service."""
    found = methods(SERVICE)[method]
    assert found.arity == "unary_unary", f"{method} is a stream"
    return found


def multicallable(channel: Any, method: Method) -> Any:
    """Return what calls a method over a channel."""
    return getattr(channel, method.arity)(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
