"""gRPC services and stubs, made from the descriptors: one table of methods serves both ends."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from penstock.proto import cdcpb_pb2, etcdserverpb_pb2, keyspacepb_pb2, pdpb_pb2, storepb_pb2, tikvpb_pb2

_FILES = (
    cdcpb_pb2,
    etcdserverpb_pb2,
    keyspacepb_pb2,
    pdpb_pb2,
    storepb_pb2,
    tikvpb_pb2,
)  # importing registers them
_POOL = descriptor_pool.Default()


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: its path on the wire and the classes of its messages."""

    name: str
    path: str
    request: type[Message]
    response: type[Message]
    client_streaming: bool
    server_streaming: bool

    @property
    def arity(self) -> str:
        """The word gRPC has for the shape of the call, such as "unary_stream"."""
        sides = (self.client_streaming, self.server_streaming)
        return "_".join("stream" if streaming else "unary" for streaming in sides)


@cache
def methods(service: str) -> Mapping[str, Method]:
    """Return the methods of a service such as "tikvpb.Tikv", by name."""
    found = _service(service)
    return {
        m.name: Method(
            name=m.name,
            path=f"/{service}/{m.name}",
            request=message_factory.GetMessageClass(m.input_type),
            response=message_factory.GetMessageClass(m.output_type),
            client_streaming=m.client_streaming,
            server_streaming=m.server_streaming,
        )
        for m in found.methods
    }


def _service(full_name: str) -> ServiceDescriptor:
    found: ServiceDescriptor = _POOL.FindServiceByName(full_name)
    return found


def handler(service: str, implement: Mapping[str, Callable[..., Any]]) -> "grpc.GenericRpcHandler[Any, Any]":
    """Serve the given methods of a service; the others answer UNIMPLEMENTED."""
    known = methods(service)
    rpcs = {}
    for name, behaviour in implement.items():
        method = known[name]
        wrap = getattr(grpc, f"{method.arity}_rpc_method_handler")
        rpcs[name] = wrap(
            behaviour,
            request_deserializer=method.request.FromString,
            response_serializer=method.response.SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service, rpcs)


class Stub:
    """Calls of a service over a channel: `stub.KvGet(request, timeout=...)`."""

    def __init__(self, channel: Any, service: str) -> None:
        for method in methods(service).values():
            call = getattr(channel, method.arity)
            setattr(
                self,
                method.name,
                call(
                    method.path,
                    request_serializer=method.request.SerializeToString,
                    response_deserializer=method.response.FromString,
                ),
            )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the service has no method {name}")
