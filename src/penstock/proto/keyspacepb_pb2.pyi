from penstock.proto import pdpb_pb2 as _pdpb_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyspaceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENABLED: _ClassVar[KeyspaceState]
    DISABLED: _ClassVar[KeyspaceState]
    ARCHIVED: _ClassVar[KeyspaceState]
    TOMBSTONE: _ClassVar[KeyspaceState]
ENABLED: KeyspaceState
DISABLED: KeyspaceState
ARCHIVED: KeyspaceState
TOMBSTONE: KeyspaceState

class LoadKeyspaceRequest(_message.Message):
    __slots__ = ("header", "name", "namespace")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.RequestHeader
    name: str
    namespace: NamespaceRef
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.RequestHeader, _Mapping]] = ..., name: _Optional[str] = ..., namespace: _Optional[_Union[NamespaceRef, _Mapping]] = ...) -> None: ...

class LoadKeyspaceResponse(_message.Message):
    __slots__ = ("header", "keyspace")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.ResponseHeader
    keyspace: KeyspaceMeta
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.ResponseHeader, _Mapping]] = ..., keyspace: _Optional[_Union[KeyspaceMeta, _Mapping]] = ...) -> None: ...

class NamespaceRef(_message.Message):
    __slots__ = ("namespace_id", "namespace_name")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    namespace_id: int
    namespace_name: str
    def __init__(self, namespace_id: _Optional[int] = ..., namespace_name: _Optional[str] = ...) -> None: ...

class KeyspaceMeta(_message.Message):
    __slots__ = ("id", "name", "state", "created_at", "state_changed_at", "config")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    state: KeyspaceState
    created_at: int
    state_changed_at: int
    config: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[_Union[KeyspaceState, str]] = ..., created_at: _Optional[int] = ..., state_changed_at: _Optional[int] = ..., config: _Optional[_Mapping[str, str]] = ...) -> None: ...
