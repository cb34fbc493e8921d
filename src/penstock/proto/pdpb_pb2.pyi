from penstock.proto import metapb_pb2 as _metapb_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServiceMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN_SVC_MODE: _ClassVar[ServiceMode]
    PD_SVC_MODE: _ClassVar[ServiceMode]
    API_SVC_MODE: _ClassVar[ServiceMode]

class SplitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADMIN: _ClassVar[SplitReason]
    SIZE: _ClassVar[SplitReason]
    LOAD: _ClassVar[SplitReason]

class OperatorStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUCCESS: _ClassVar[OperatorStatus]
    TIMEOUT: _ClassVar[OperatorStatus]
    CANCEL: _ClassVar[OperatorStatus]
    REPLACE: _ClassVar[OperatorStatus]
    RUNNING: _ClassVar[OperatorStatus]

class EventType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT: _ClassVar[EventType]
    DELETE: _ClassVar[EventType]

class ErrorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[ErrorType]
    UNKNOWN: _ClassVar[ErrorType]
    NOT_BOOTSTRAPPED: _ClassVar[ErrorType]
    STORE_TOMBSTONE: _ClassVar[ErrorType]
    ALREADY_BOOTSTRAPPED: _ClassVar[ErrorType]
    INCOMPATIBLE_VERSION: _ClassVar[ErrorType]
    REGION_NOT_FOUND: _ClassVar[ErrorType]
    GLOBAL_CONFIG_NOT_FOUND: _ClassVar[ErrorType]
    DUPLICATED_ENTRY: _ClassVar[ErrorType]
    ENTRY_NOT_FOUND: _ClassVar[ErrorType]
    INVALID_VALUE: _ClassVar[ErrorType]
    DATA_COMPACTED: _ClassVar[ErrorType]
    REGIONS_NOT_CONTAIN_ALL_KEY_RANGE: _ClassVar[ErrorType]
UNKNOWN_SVC_MODE: ServiceMode
PD_SVC_MODE: ServiceMode
API_SVC_MODE: ServiceMode
ADMIN: SplitReason
SIZE: SplitReason
LOAD: SplitReason
SUCCESS: OperatorStatus
TIMEOUT: OperatorStatus
CANCEL: OperatorStatus
REPLACE: OperatorStatus
RUNNING: OperatorStatus
PUT: EventType
DELETE: EventType
OK: ErrorType
UNKNOWN: ErrorType
NOT_BOOTSTRAPPED: ErrorType
STORE_TOMBSTONE: ErrorType
ALREADY_BOOTSTRAPPED: ErrorType
INCOMPATIBLE_VERSION: ErrorType
REGION_NOT_FOUND: ErrorType
GLOBAL_CONFIG_NOT_FOUND: ErrorType
DUPLICATED_ENTRY: ErrorType
ENTRY_NOT_FOUND: ErrorType
INVALID_VALUE: ErrorType
DATA_COMPACTED: ErrorType
REGIONS_NOT_CONTAIN_ALL_KEY_RANGE: ErrorType

class GetClusterInfoRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ...) -> None: ...

class GetClusterInfoResponse(_message.Message):
    __slots__ = ("header", "serviceModes", "tso_urls")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERVICEMODES_FIELD_NUMBER: _ClassVar[int]
    TSO_URLS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    serviceModes: _containers.RepeatedScalarFieldContainer[ServiceMode]
    tso_urls: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., serviceModes: _Optional[_Iterable[_Union[ServiceMode, str]]] = ..., tso_urls: _Optional[_Iterable[str]] = ...) -> None: ...

class GetMembersRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class GetMembersResponse(_message.Message):
    __slots__ = ("header", "members", "leader", "etcd_leader", "tso_allocator_leaders")
    class TsoAllocatorLeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Member
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ETCD_LEADER_FIELD_NUMBER: _ClassVar[int]
    TSO_ALLOCATOR_LEADERS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    members: _containers.RepeatedCompositeFieldContainer[Member]
    leader: Member
    etcd_leader: Member
    tso_allocator_leaders: _containers.MessageMap[str, Member]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., leader: _Optional[_Union[Member, _Mapping]] = ..., etcd_leader: _Optional[_Union[Member, _Mapping]] = ..., tso_allocator_leaders: _Optional[_Mapping[str, Member]] = ...) -> None: ...

class TsoRequest(_message.Message):
    __slots__ = ("header", "count", "dc_location")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DC_LOCATION_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    count: int
    dc_location: str
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., count: _Optional[int] = ..., dc_location: _Optional[str] = ...) -> None: ...

class TsoResponse(_message.Message):
    __slots__ = ("header", "count", "timestamp")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    count: int
    timestamp: Timestamp
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., count: _Optional[int] = ..., timestamp: _Optional[_Union[Timestamp, _Mapping]] = ...) -> None: ...

class BootstrapRequest(_message.Message):
    __slots__ = ("header", "store", "region")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    store: _metapb_pb2.Store
    region: _metapb_pb2.Region
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., store: _Optional[_Union[_metapb_pb2.Store, _Mapping]] = ..., region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ...) -> None: ...

class BootstrapResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ...) -> None: ...

class IsBootstrappedRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class IsBootstrappedResponse(_message.Message):
    __slots__ = ("header", "bootstrapped")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAPPED_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    bootstrapped: bool
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., bootstrapped: _Optional[bool] = ...) -> None: ...

class AllocIDRequest(_message.Message):
    __slots__ = ("header", "count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    count: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class AllocIDResponse(_message.Message):
    __slots__ = ("header", "id", "count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    id: int
    count: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., id: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class GetStoreRequest(_message.Message):
    __slots__ = ("header", "store_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    store_id: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., store_id: _Optional[int] = ...) -> None: ...

class GetStoreResponse(_message.Message):
    __slots__ = ("header", "store", "stats")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    store: _metapb_pb2.Store
    stats: StoreStats
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., store: _Optional[_Union[_metapb_pb2.Store, _Mapping]] = ..., stats: _Optional[_Union[StoreStats, _Mapping]] = ...) -> None: ...

class PutStoreRequest(_message.Message):
    __slots__ = ("header", "store")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    store: _metapb_pb2.Store
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., store: _Optional[_Union[_metapb_pb2.Store, _Mapping]] = ...) -> None: ...

class PutStoreResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ...) -> None: ...

class GetAllStoresRequest(_message.Message):
    __slots__ = ("header", "exclude_tombstone_stores")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_TOMBSTONE_STORES_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    exclude_tombstone_stores: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., exclude_tombstone_stores: _Optional[bool] = ...) -> None: ...

class GetAllStoresResponse(_message.Message):
    __slots__ = ("header", "stores")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    stores: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Store]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., stores: _Optional[_Iterable[_Union[_metapb_pb2.Store, _Mapping]]] = ...) -> None: ...

class StoreHeartbeatRequest(_message.Message):
    __slots__ = ("header", "stats")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    stats: StoreStats
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., stats: _Optional[_Union[StoreStats, _Mapping]] = ...) -> None: ...

class StoreHeartbeatResponse(_message.Message):
    __slots__ = ("header", "cluster_version", "require_detailed_report", "state")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_DETAILED_REPORT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    cluster_version: str
    require_detailed_report: bool
    state: _metapb_pb2.NodeState
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., cluster_version: _Optional[str] = ..., require_detailed_report: _Optional[bool] = ..., state: _Optional[_Union[_metapb_pb2.NodeState, str]] = ...) -> None: ...

class GetRegionRequest(_message.Message):
    __slots__ = ("header", "region_key", "need_buckets")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_KEY_FIELD_NUMBER: _ClassVar[int]
    NEED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_key: bytes
    need_buckets: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_key: _Optional[bytes] = ..., need_buckets: _Optional[bool] = ...) -> None: ...

class GetRegionResponse(_message.Message):
    __slots__ = ("header", "region", "leader", "down_peers", "pending_peers", "buckets")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    DOWN_PEERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_PEERS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    region: _metapb_pb2.Region
    leader: _metapb_pb2.Peer
    down_peers: _containers.RepeatedCompositeFieldContainer[PeerStats]
    pending_peers: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Peer]
    buckets: _metapb_pb2.Buckets
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., leader: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ..., down_peers: _Optional[_Iterable[_Union[PeerStats, _Mapping]]] = ..., pending_peers: _Optional[_Iterable[_Union[_metapb_pb2.Peer, _Mapping]]] = ..., buckets: _Optional[_Union[_metapb_pb2.Buckets, _Mapping]] = ...) -> None: ...

class GetRegionByIDRequest(_message.Message):
    __slots__ = ("header", "region_id", "need_buckets")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    NEED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_id: int
    need_buckets: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_id: _Optional[int] = ..., need_buckets: _Optional[bool] = ...) -> None: ...

class QueryRegionRequest(_message.Message):
    __slots__ = ("header", "need_buckets", "ids", "keys", "prev_keys")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NEED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PREV_KEYS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    need_buckets: bool
    ids: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    prev_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., need_buckets: _Optional[bool] = ..., ids: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[bytes]] = ..., prev_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class QueryRegionResponse(_message.Message):
    __slots__ = ("header", "key_id_map", "prev_key_id_map", "regions_by_id")
    class RegionsByIdEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: RegionResponse
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[RegionResponse, _Mapping]] = ...) -> None: ...
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_MAP_FIELD_NUMBER: _ClassVar[int]
    PREV_KEY_ID_MAP_FIELD_NUMBER: _ClassVar[int]
    REGIONS_BY_ID_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    key_id_map: _containers.RepeatedScalarFieldContainer[int]
    prev_key_id_map: _containers.RepeatedScalarFieldContainer[int]
    regions_by_id: _containers.MessageMap[int, RegionResponse]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., key_id_map: _Optional[_Iterable[int]] = ..., prev_key_id_map: _Optional[_Iterable[int]] = ..., regions_by_id: _Optional[_Mapping[int, RegionResponse]] = ...) -> None: ...

class ScanRegionsRequest(_message.Message):
    __slots__ = ("header", "start_key", "limit", "end_key")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    start_key: bytes
    limit: int
    end_key: bytes
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class ScanRegionsResponse(_message.Message):
    __slots__ = ("header", "region_metas", "leaders", "regions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_METAS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    region_metas: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Region]
    leaders: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Peer]
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., region_metas: _Optional[_Iterable[_Union[_metapb_pb2.Region, _Mapping]]] = ..., leaders: _Optional[_Iterable[_Union[_metapb_pb2.Peer, _Mapping]]] = ..., regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ...) -> None: ...

class BatchScanRegionsRequest(_message.Message):
    __slots__ = ("header", "need_buckets", "ranges", "limit", "contain_all_key_range")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NEED_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONTAIN_ALL_KEY_RANGE_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    need_buckets: bool
    ranges: _containers.RepeatedCompositeFieldContainer[KeyRange]
    limit: int
    contain_all_key_range: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., need_buckets: _Optional[bool] = ..., ranges: _Optional[_Iterable[_Union[KeyRange, _Mapping]]] = ..., limit: _Optional[int] = ..., contain_all_key_range: _Optional[bool] = ...) -> None: ...

class BatchScanRegionsResponse(_message.Message):
    __slots__ = ("header", "regions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ...) -> None: ...

class AskBatchSplitRequest(_message.Message):
    __slots__ = ("header", "region", "split_count", "reason")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    SPLIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region: _metapb_pb2.Region
    split_count: int
    reason: SplitReason
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., split_count: _Optional[int] = ..., reason: _Optional[_Union[SplitReason, str]] = ...) -> None: ...

class AskBatchSplitResponse(_message.Message):
    __slots__ = ("header", "ids")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    ids: _containers.RepeatedCompositeFieldContainer[SplitID]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., ids: _Optional[_Iterable[_Union[SplitID, _Mapping]]] = ...) -> None: ...

class ReportBatchSplitRequest(_message.Message):
    __slots__ = ("header", "regions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    regions: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Region]
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[_metapb_pb2.Region, _Mapping]]] = ...) -> None: ...

class ReportBatchSplitResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ...) -> None: ...

class GetClusterConfigRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class GetClusterConfigResponse(_message.Message):
    __slots__ = ("header", "cluster")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    cluster: _metapb_pb2.Cluster
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., cluster: _Optional[_Union[_metapb_pb2.Cluster, _Mapping]] = ...) -> None: ...

class ScatterRegionRequest(_message.Message):
    __slots__ = ("header", "region_id", "region", "leader", "group", "regions_id", "retry_limit", "skip_store_limit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REGIONS_ID_FIELD_NUMBER: _ClassVar[int]
    RETRY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    SKIP_STORE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_id: int
    region: _metapb_pb2.Region
    leader: _metapb_pb2.Peer
    group: str
    regions_id: _containers.RepeatedScalarFieldContainer[int]
    retry_limit: int
    skip_store_limit: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_id: _Optional[int] = ..., region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., leader: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ..., group: _Optional[str] = ..., regions_id: _Optional[_Iterable[int]] = ..., retry_limit: _Optional[int] = ..., skip_store_limit: _Optional[bool] = ...) -> None: ...

class ScatterRegionResponse(_message.Message):
    __slots__ = ("header", "finished_percentage", "failed_regions_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    FAILED_REGIONS_ID_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    finished_percentage: int
    failed_regions_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., finished_percentage: _Optional[int] = ..., failed_regions_id: _Optional[_Iterable[int]] = ...) -> None: ...

class GetGCSafePointRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class GetGCSafePointResponse(_message.Message):
    __slots__ = ("header", "safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., safe_point: _Optional[int] = ...) -> None: ...

class UpdateGCSafePointRequest(_message.Message):
    __slots__ = ("header", "safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    safe_point: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., safe_point: _Optional[int] = ...) -> None: ...

class UpdateGCSafePointResponse(_message.Message):
    __slots__ = ("header", "new_safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NEW_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    new_safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., new_safe_point: _Optional[int] = ...) -> None: ...

class UpdateServiceGCSafePointRequest(_message.Message):
    __slots__ = ("header", "service_id", "TTL", "safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    service_id: bytes
    TTL: int
    safe_point: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., service_id: _Optional[bytes] = ..., TTL: _Optional[int] = ..., safe_point: _Optional[int] = ...) -> None: ...

class UpdateServiceGCSafePointResponse(_message.Message):
    __slots__ = ("header", "service_id", "TTL", "min_safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    MIN_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    service_id: bytes
    TTL: int
    min_safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., service_id: _Optional[bytes] = ..., TTL: _Optional[int] = ..., min_safe_point: _Optional[int] = ...) -> None: ...

class AdvanceGCSafePointRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "target")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    target: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., target: _Optional[int] = ...) -> None: ...

class AdvanceGCSafePointResponse(_message.Message):
    __slots__ = ("header", "old_gc_safe_point", "new_gc_safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OLD_GC_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    NEW_GC_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    old_gc_safe_point: int
    new_gc_safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., old_gc_safe_point: _Optional[int] = ..., new_gc_safe_point: _Optional[int] = ...) -> None: ...

class AdvanceTxnSafePointRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "target")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    target: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., target: _Optional[int] = ...) -> None: ...

class AdvanceTxnSafePointResponse(_message.Message):
    __slots__ = ("header", "old_txn_safe_point", "new_txn_safe_point", "blocker_description")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OLD_TXN_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    NEW_TXN_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    BLOCKER_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    old_txn_safe_point: int
    new_txn_safe_point: int
    blocker_description: str
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., old_txn_safe_point: _Optional[int] = ..., new_txn_safe_point: _Optional[int] = ..., blocker_description: _Optional[str] = ...) -> None: ...

class SetGCBarrierRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "barrier_id", "barrier_ts", "ttl_seconds")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    BARRIER_TS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    barrier_id: str
    barrier_ts: int
    ttl_seconds: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., barrier_id: _Optional[str] = ..., barrier_ts: _Optional[int] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...

class SetGCBarrierResponse(_message.Message):
    __slots__ = ("header", "new_barrier_info")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NEW_BARRIER_INFO_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    new_barrier_info: GCBarrierInfo
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., new_barrier_info: _Optional[_Union[GCBarrierInfo, _Mapping]] = ...) -> None: ...

class DeleteGCBarrierRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "barrier_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    barrier_id: str
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., barrier_id: _Optional[str] = ...) -> None: ...

class DeleteGCBarrierResponse(_message.Message):
    __slots__ = ("header", "deleted_barrier_info")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DELETED_BARRIER_INFO_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    deleted_barrier_info: GCBarrierInfo
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., deleted_barrier_info: _Optional[_Union[GCBarrierInfo, _Mapping]] = ...) -> None: ...

class GetGCStateRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "exclude_gc_barriers", "include_global_gc_barriers")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_GC_BARRIERS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_GLOBAL_GC_BARRIERS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    exclude_gc_barriers: bool
    include_global_gc_barriers: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., exclude_gc_barriers: _Optional[bool] = ..., include_global_gc_barriers: _Optional[bool] = ...) -> None: ...

class GetGCStateResponse(_message.Message):
    __slots__ = ("header", "gc_state", "global_gc_barriers")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    GC_STATE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_GC_BARRIERS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    gc_state: GCState
    global_gc_barriers: GlobalGCBarriersInfo
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., gc_state: _Optional[_Union[GCState, _Mapping]] = ..., global_gc_barriers: _Optional[_Union[GlobalGCBarriersInfo, _Mapping]] = ...) -> None: ...

class GetOperatorRequest(_message.Message):
    __slots__ = ("header", "region_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_id: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_id: _Optional[int] = ...) -> None: ...

class GetOperatorResponse(_message.Message):
    __slots__ = ("header", "region_id", "desc", "status", "kind")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    DESC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    region_id: int
    desc: bytes
    status: OperatorStatus
    kind: bytes
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., region_id: _Optional[int] = ..., desc: _Optional[bytes] = ..., status: _Optional[_Union[OperatorStatus, str]] = ..., kind: _Optional[bytes] = ...) -> None: ...

class SplitRegionsRequest(_message.Message):
    __slots__ = ("header", "split_keys", "retry_limit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SPLIT_KEYS_FIELD_NUMBER: _ClassVar[int]
    RETRY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    split_keys: _containers.RepeatedScalarFieldContainer[bytes]
    retry_limit: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., split_keys: _Optional[_Iterable[bytes]] = ..., retry_limit: _Optional[int] = ...) -> None: ...

class SplitRegionsResponse(_message.Message):
    __slots__ = ("header", "finished_percentage", "regions_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FINISHED_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    REGIONS_ID_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    finished_percentage: int
    regions_id: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., finished_percentage: _Optional[int] = ..., regions_id: _Optional[_Iterable[int]] = ...) -> None: ...

class StoreGlobalConfigRequest(_message.Message):
    __slots__ = ("changes", "config_path")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_PATH_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[GlobalConfigItem]
    config_path: str
    def __init__(self, changes: _Optional[_Iterable[_Union[GlobalConfigItem, _Mapping]]] = ..., config_path: _Optional[str] = ...) -> None: ...

class StoreGlobalConfigResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: Error
    def __init__(self, error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class LoadGlobalConfigRequest(_message.Message):
    __slots__ = ("names", "config_path")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    CONFIG_PATH_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    config_path: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., config_path: _Optional[str] = ...) -> None: ...

class LoadGlobalConfigResponse(_message.Message):
    __slots__ = ("items", "revision")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[GlobalConfigItem]
    revision: int
    def __init__(self, items: _Optional[_Iterable[_Union[GlobalConfigItem, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class WatchGlobalConfigRequest(_message.Message):
    __slots__ = ("config_path", "revision")
    CONFIG_PATH_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    config_path: str
    revision: int
    def __init__(self, config_path: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class WatchGlobalConfigResponse(_message.Message):
    __slots__ = ("changes", "revision", "header")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[GlobalConfigItem]
    revision: int
    header: ResponseHeader
    def __init__(self, changes: _Optional[_Iterable[_Union[GlobalConfigItem, _Mapping]]] = ..., revision: _Optional[int] = ..., header: _Optional[_Union[ResponseHeader, _Mapping]] = ...) -> None: ...

class SetExternalTimestampRequest(_message.Message):
    __slots__ = ("header", "timestamp")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    timestamp: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., timestamp: _Optional[int] = ...) -> None: ...

class SetExternalTimestampResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ...) -> None: ...

class GetExternalTimestampRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class GetExternalTimestampResponse(_message.Message):
    __slots__ = ("header", "timestamp")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    timestamp: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., timestamp: _Optional[int] = ...) -> None: ...

class GetMinTSRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class GetMinTSResponse(_message.Message):
    __slots__ = ("header", "timestamp")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    timestamp: Timestamp
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., timestamp: _Optional[_Union[Timestamp, _Mapping]] = ...) -> None: ...

class ResponseHeader(_message.Message):
    __slots__ = ("cluster_id", "error")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    error: Error
    def __init__(self, cluster_id: _Optional[int] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class RequestHeader(_message.Message):
    __slots__ = ("cluster_id", "sender_id", "caller_id", "caller_component")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    CALLER_ID_FIELD_NUMBER: _ClassVar[int]
    CALLER_COMPONENT_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    sender_id: int
    caller_id: str
    caller_component: str
    def __init__(self, cluster_id: _Optional[int] = ..., sender_id: _Optional[int] = ..., caller_id: _Optional[str] = ..., caller_component: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "member_id", "peer_urls", "client_urls", "leader_priority", "deploy_path", "binary_version", "git_hash", "dc_location")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_URLS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_URLS_FIELD_NUMBER: _ClassVar[int]
    LEADER_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DEPLOY_PATH_FIELD_NUMBER: _ClassVar[int]
    BINARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    GIT_HASH_FIELD_NUMBER: _ClassVar[int]
    DC_LOCATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    member_id: int
    peer_urls: _containers.RepeatedScalarFieldContainer[str]
    client_urls: _containers.RepeatedScalarFieldContainer[str]
    leader_priority: int
    deploy_path: str
    binary_version: str
    git_hash: str
    dc_location: str
    def __init__(self, name: _Optional[str] = ..., member_id: _Optional[int] = ..., peer_urls: _Optional[_Iterable[str]] = ..., client_urls: _Optional[_Iterable[str]] = ..., leader_priority: _Optional[int] = ..., deploy_path: _Optional[str] = ..., binary_version: _Optional[str] = ..., git_hash: _Optional[str] = ..., dc_location: _Optional[str] = ...) -> None: ...

class Timestamp(_message.Message):
    __slots__ = ("physical", "logical", "suffix_bits")
    PHYSICAL_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_BITS_FIELD_NUMBER: _ClassVar[int]
    physical: int
    logical: int
    suffix_bits: int
    def __init__(self, physical: _Optional[int] = ..., logical: _Optional[int] = ..., suffix_bits: _Optional[int] = ...) -> None: ...

class StoreStats(_message.Message):
    __slots__ = ("store_id", "capacity", "available", "region_count", "sending_snap_count", "receiving_snap_count", "start_time", "applying_snap_count", "is_busy", "used_size", "bytes_written", "keys_written", "bytes_read", "keys_read", "interval", "slow_score", "is_apply_busy", "total_memory", "used_memory", "is_stopping")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    REGION_COUNT_FIELD_NUMBER: _ClassVar[int]
    SENDING_SNAP_COUNT_FIELD_NUMBER: _ClassVar[int]
    RECEIVING_SNAP_COUNT_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    APPLYING_SNAP_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    USED_SIZE_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    KEYS_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    KEYS_READ_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    SLOW_SCORE_FIELD_NUMBER: _ClassVar[int]
    IS_APPLY_BUSY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MEMORY_FIELD_NUMBER: _ClassVar[int]
    USED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    IS_STOPPING_FIELD_NUMBER: _ClassVar[int]
    store_id: int
    capacity: int
    available: int
    region_count: int
    sending_snap_count: int
    receiving_snap_count: int
    start_time: int
    applying_snap_count: int
    is_busy: bool
    used_size: int
    bytes_written: int
    keys_written: int
    bytes_read: int
    keys_read: int
    interval: TimeInterval
    slow_score: int
    is_apply_busy: bool
    total_memory: int
    used_memory: int
    is_stopping: bool
    def __init__(self, store_id: _Optional[int] = ..., capacity: _Optional[int] = ..., available: _Optional[int] = ..., region_count: _Optional[int] = ..., sending_snap_count: _Optional[int] = ..., receiving_snap_count: _Optional[int] = ..., start_time: _Optional[int] = ..., applying_snap_count: _Optional[int] = ..., is_busy: _Optional[bool] = ..., used_size: _Optional[int] = ..., bytes_written: _Optional[int] = ..., keys_written: _Optional[int] = ..., bytes_read: _Optional[int] = ..., keys_read: _Optional[int] = ..., interval: _Optional[_Union[TimeInterval, _Mapping]] = ..., slow_score: _Optional[int] = ..., is_apply_busy: _Optional[bool] = ..., total_memory: _Optional[int] = ..., used_memory: _Optional[int] = ..., is_stopping: _Optional[bool] = ...) -> None: ...

class PeerStats(_message.Message):
    __slots__ = ("peer", "down_seconds")
    PEER_FIELD_NUMBER: _ClassVar[int]
    DOWN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    peer: _metapb_pb2.Peer
    down_seconds: int
    def __init__(self, peer: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ..., down_seconds: _Optional[int] = ...) -> None: ...

class RegionResponse(_message.Message):
    __slots__ = ("region", "leader", "down_peers", "pending_peers", "buckets")
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    DOWN_PEERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_PEERS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    region: _metapb_pb2.Region
    leader: _metapb_pb2.Peer
    down_peers: _containers.RepeatedCompositeFieldContainer[PeerStats]
    pending_peers: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Peer]
    buckets: _metapb_pb2.Buckets
    def __init__(self, region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., leader: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ..., down_peers: _Optional[_Iterable[_Union[PeerStats, _Mapping]]] = ..., pending_peers: _Optional[_Iterable[_Union[_metapb_pb2.Peer, _Mapping]]] = ..., buckets: _Optional[_Union[_metapb_pb2.Buckets, _Mapping]] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("region", "leader", "down_peers", "pending_peers", "buckets")
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    DOWN_PEERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_PEERS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    region: _metapb_pb2.Region
    leader: _metapb_pb2.Peer
    down_peers: _containers.RepeatedCompositeFieldContainer[PeerStats]
    pending_peers: _containers.RepeatedCompositeFieldContainer[_metapb_pb2.Peer]
    buckets: _metapb_pb2.Buckets
    def __init__(self, region: _Optional[_Union[_metapb_pb2.Region, _Mapping]] = ..., leader: _Optional[_Union[_metapb_pb2.Peer, _Mapping]] = ..., down_peers: _Optional[_Iterable[_Union[PeerStats, _Mapping]]] = ..., pending_peers: _Optional[_Iterable[_Union[_metapb_pb2.Peer, _Mapping]]] = ..., buckets: _Optional[_Union[_metapb_pb2.Buckets, _Mapping]] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("start_key", "end_key")
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    start_key: bytes
    end_key: bytes
    def __init__(self, start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class SplitID(_message.Message):
    __slots__ = ("new_region_id", "new_peer_ids")
    NEW_REGION_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_PEER_IDS_FIELD_NUMBER: _ClassVar[int]
    new_region_id: int
    new_peer_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, new_region_id: _Optional[int] = ..., new_peer_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class KeyspaceScope(_message.Message):
    __slots__ = ("keyspace_id",)
    KEYSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    keyspace_id: int
    def __init__(self, keyspace_id: _Optional[int] = ...) -> None: ...

class GCBarrierInfo(_message.Message):
    __slots__ = ("barrier_id", "barrier_ts", "ttl_seconds")
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    BARRIER_TS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    barrier_id: str
    barrier_ts: int
    ttl_seconds: int
    def __init__(self, barrier_id: _Optional[str] = ..., barrier_ts: _Optional[int] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...

class GCState(_message.Message):
    __slots__ = ("keyspace_scope", "is_keyspace_level_gc", "txn_safe_point", "gc_safe_point", "gc_barriers")
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    IS_KEYSPACE_LEVEL_GC_FIELD_NUMBER: _ClassVar[int]
    TXN_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    GC_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    GC_BARRIERS_FIELD_NUMBER: _ClassVar[int]
    keyspace_scope: KeyspaceScope
    is_keyspace_level_gc: bool
    txn_safe_point: int
    gc_safe_point: int
    gc_barriers: _containers.RepeatedCompositeFieldContainer[GCBarrierInfo]
    def __init__(self, keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., is_keyspace_level_gc: _Optional[bool] = ..., txn_safe_point: _Optional[int] = ..., gc_safe_point: _Optional[int] = ..., gc_barriers: _Optional[_Iterable[_Union[GCBarrierInfo, _Mapping]]] = ...) -> None: ...

class GlobalGCBarriersInfo(_message.Message):
    __slots__ = ("barriers",)
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    barriers: _containers.RepeatedCompositeFieldContainer[GlobalGCBarrierInfo]
    def __init__(self, barriers: _Optional[_Iterable[_Union[GlobalGCBarrierInfo, _Mapping]]] = ...) -> None: ...

class GlobalConfigItem(_message.Message):
    __slots__ = ("name", "value", "error", "kind", "payload")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    error: Error
    kind: EventType
    payload: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., kind: _Optional[_Union[EventType, str]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("type", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: ErrorType
    message: str
    def __init__(self, type: _Optional[_Union[ErrorType, str]] = ..., message: _Optional[str] = ...) -> None: ...

class TimeInterval(_message.Message):
    __slots__ = ("start_timestamp", "end_timestamp")
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    END_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: int
    end_timestamp: int
    def __init__(self, start_timestamp: _Optional[int] = ..., end_timestamp: _Optional[int] = ...) -> None: ...

class GlobalGCBarrierInfo(_message.Message):
    __slots__ = ("barrier_id", "barrier_ts", "ttl_seconds")
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    BARRIER_TS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    barrier_id: str
    barrier_ts: int
    ttl_seconds: int
    def __init__(self, barrier_id: _Optional[str] = ..., barrier_ts: _Optional[int] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...
