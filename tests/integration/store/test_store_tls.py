from pathlib import Path

import grpc
import pytest

from penstock.errors import Invalid
from penstock.proto import pdpb_pb2 as pdpb
from penstock.proto.services import Stub
from penstock.settings import ServerTlsSettings, StoreSettings
from penstock.store.cluster import Cluster
from support.certificates import issue


async def members(address: str, credentials: grpc.ChannelCredentials) -> pdpb.GetMembersResponse:
    async with grpc.aio.secure_channel(address, credentials) as channel:
        answer: pdpb.GetMembersResponse = await Stub(channel, "pdpb.PD").GetMembers(
            pdpb.GetMembersRequest(), timeout=5
        )
        return answer


async def test_with_an_authority_only_its_clients_get_in(tmp_path: Path) -> None:
    ca, stranger = issue(tmp_path, "ca"), issue(tmp_path, "stranger")
    server, client = issue(tmp_path, "server", ca), issue(tmp_path, "client", ca)
    outsider = issue(tmp_path, "outsider", stranger)
    tls = ServerTlsSettings(cert_path=server.cert_path, key_path=server.key_path, ca_path=ca.cert_path)
    cluster = await Cluster.start(StoreSettings(data=tmp_path / "data", pd_addr="127.0.0.1:0", tls=tls))
    try:
        root = ca.cert_path.read_bytes()
        known = grpc.ssl_channel_credentials(
            root, client.key_path.read_bytes(), client.cert_path.read_bytes()
        )
        answer = await members(cluster.pd_addr, known)
        assert list(answer.leader.client_urls) == [f"https://{cluster.pd_addr}"]
        anonymous = grpc.ssl_channel_credentials(root)
        forged = grpc.ssl_channel_credentials(
            root, outsider.key_path.read_bytes(), outsider.cert_path.read_bytes()
        )
        for address in (cluster.pd_addr, *cluster.store_addrs.values()):
            for refused in (anonymous, forged):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await members(address, refused)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        await cluster.stop()


async def test_without_an_authority_every_client_gets_in(tmp_path: Path) -> None:
    ca = issue(tmp_path, "ca")
    server = issue(tmp_path, "server", ca)
    tls = ServerTlsSettings(cert_path=server.cert_path, key_path=server.key_path)
    cluster = await Cluster.start(StoreSettings(data=tmp_path / "data", pd_addr="127.0.0.1:0", tls=tls))
    try:
        answer = await members(cluster.pd_addr, grpc.ssl_channel_credentials(ca.cert_path.read_bytes()))
        assert answer.header.cluster_id == cluster.cluster_id
    finally:
        await cluster.stop()


async def test_files_that_hold_no_certificate_are_refused(tmp_path: Path) -> None:
    server = issue(tmp_path, "server")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for tls, reason in (
        (ServerTlsSettings(cert_path=nonsense, key_path=nonsense), "do not fit together"),
        (ServerTlsSettings(cert_path=server.cert_path, key_path=issue(tmp_path, "x").key_path), "do not fit"),
        (
            ServerTlsSettings(cert_path=server.cert_path, key_path=server.key_path, ca_path=nonsense),
            "holds no certificate",
        ),
    ):
        with pytest.raises(Invalid, match=reason):
            await Cluster.start(StoreSettings(data=tmp_path / "data", pd_addr="127.0.0.1:0", tls=tls))
