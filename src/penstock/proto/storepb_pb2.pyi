from penstock.proto import metapb_pb2 as _metapb_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SplitRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SplitResponse(_message.Message):
    __slots__ = ("regions",)
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Region]
    def __init__(self, regions: _Optional[_Iterable[_Union[_metapb_pb2.Region, _Mapping]]] = ...) -> None: ...

class MergeRequest(_message.Message):
    __slots__ = ("region_id",)
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    def __init__(self, region_id: _Optional[int] = ...) -> None: ...

class MergeResponse(_message.Message):
    __slots__ = ("region",)
    REGION_FIELD_NUMBER: _ClassVar[int]
    region: _metapb_pb2.Region
    def __init__(self, region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ...) -> None: ...

class TransferLeaderRequest(_message.Message):
    __slots__ = ("region_id", "store_id")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    store_id: int
    def __init__(self, region_id: _Optional[int] = ..., store_id: _Optional[int] = ...) -> None: ...

class TransferLeaderResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Fault(_message.Message):
    __slots__ = ("kind", "method", "store_id", "times", "skip", "delay_ms")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DROP: _ClassVar[Fault.Kind]
        DELAY: _ClassVar[Fault.Kind]
        SERVER_IS_BUSY: _ClassVar[Fault.Kind]
        NOT_LEADER: _ClassVar[Fault.Kind]
        CRASH: _ClassVar[Fault.Kind]
        UNAVAILABLE: _ClassVar[Fault.Kind]
        UNDETERMINED: _ClassVar[Fault.Kind]
        STREAM_RESET: _ClassVar[Fault.Kind]
        EPOCH_NOT_MATCH: _ClassVar[Fault.Kind]
        STALE_COMMAND: _ClassVar[Fault.Kind]
        REGION_NOT_FOUND: _ClassVar[Fault.Kind]
        MAX_TIMESTAMP_NOT_SYNCED: _ClassVar[Fault.Kind]
    DROP: Fault.Kind
    DELAY: Fault.Kind
    SERVER_IS_BUSY: Fault.Kind
    NOT_LEADER: Fault.Kind
    CRASH: Fault.Kind
    UNAVAILABLE: Fault.Kind
    UNDETERMINED: Fault.Kind
    STREAM_RESET: Fault.Kind
    EPOCH_NOT_MATCH: Fault.Kind
    STALE_COMMAND: Fault.Kind
    REGION_NOT_FOUND: Fault.Kind
    MAX_TIMESTAMP_NOT_SYNCED: Fault.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    kind: Fault.Kind
    method: str
    store_id: int
    times: int
    skip: int
    delay_ms: int
    def __init__(self, kind: _Optional[_Union[Fault.Kind, str]] = ..., method: _Optional[str] = ..., store_id: _Optional[int] = ..., times: _Optional[int] = ..., skip: _Optional[int] = ..., delay_ms: _Optional[int] = ...) -> None: ...

class SetFaultsRequest(_message.Message):
    __slots__ = ("faults",)
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    faults: _containers.RepeatedCompositeFieldContainer[Fault]
    def __init__(self, faults: _Optional[_Iterable[_Union[Fault, _Mapping]]] = ...) -> None: ...

class SetFaultsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopStoreRequest(_message.Message):
    __slots__ = ("store_id",)
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    store_id: int
    def __init__(self, store_id: _Optional[int] = ...) -> None: ...

class StopStoreResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartStoreRequest(_message.Message):
    __slots__ = ("store_id",)
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    store_id: int
    def __init__(self, store_id: _Optional[int] = ...) -> None: ...

class StartStoreResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
