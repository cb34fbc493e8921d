from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WaitForEntry(_message.Message):
    __slots__ = ("txn", "wait_for_txn", "key_hash", "key", "resource_group_tag", "wait_time")
    TXN_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_TXN_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_GROUP_TAG_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIME_FIELD_NUMBER: _ClassVar[int]
    txn: int
    wait_for_txn: int
    key_hash: int
    key: bytes
    resource_group_tag: bytes
    wait_time: int
    def __init__(self, txn: _Optional[int] = ..., wait_for_txn: _Optional[int] = ..., key_hash: _Optional[int] = ..., key: _Optional[bytes] = ..., resource_group_tag: _Optional[bytes] = ..., wait_time: _Optional[int] = ...) -> None: ...
