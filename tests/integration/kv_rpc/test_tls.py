"""TLS to the placement driver and the stores: both sides checked, certificates replaced while running."""

import datetime
import ipaddress

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.clock import SYSTEM
from penstock.errors import Invalid, Unavailable
from penstock.kv.backoff import Backoffer
from penstock.kv.pd import PdClient
from penstock.kv.regions import RegionCache
from penstock.kv.rpc.client import RpcClient
from penstock.kv.rpc.connections import RpcFailed
from penstock.kv.sender import RegionSender
from penstock.proto import kvrpcpb_pb2 as kvrpcpb
from penstock.settings import KvSettings, ServerTlsSettings, StoreSettings, TlsSettings
from penstock.store.cluster import Cluster


class Authority:
    """Signs certificates for 127.0.0.1 and writes them as PEM files."""

    def __init__(self, name: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._sign(self.name, self.key, authority=True)

    def _sign(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool):
        now = datetime.datetime.fromtimestamp(SYSTEM.wall_ms() / 1000, datetime.UTC)
        day = datetime.timedelta(days=1)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - day)
            .not_valid_after(now + day)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def issue(self, folder, name: str) -> TlsSettings:
        """Write ca.pem and a certificate with its key; return their paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pem = serialization.Encoding.PEM
        (folder / "ca.pem").write_bytes(self.certificate.public_bytes(pem))
        (folder / f"{name}.pem").write_bytes(self._sign(subject, key, authority=False).public_bytes(pem))
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return TlsSettings(
            ca_path=folder / "ca.pem", cert_path=folder / f"{name}.pem", key_path=folder / f"{name}.key"
        )


def server_side(tls: TlsSettings, *, mutual: bool) -> ServerTlsSettings:
    return ServerTlsSettings(
        cert_path=tls.cert_path, key_path=tls.key_path, ca_path=tls.ca_path if mutual else None
    )


async def start(tmp_path, tls: ServerTlsSettings) -> Cluster:
    return await Cluster.start(
        StoreSettings(data=tmp_path / "store", pd_addr="127.0.0.1:0", stores=1, sync=False, tls=tls)
    )


@pytest.mark.parametrize("mutual", [False, True], ids=["server-checked", "both-checked"])
async def test_a_cluster_is_used_over_tls(tmp_path, mutual):
    authority = Authority("ours")
    cluster = await start(tmp_path, server_side(authority.issue(tmp_path, "server"), mutual=mutual))
    tls = authority.issue(tmp_path, "client") if mutual else TlsSettings(ca_path=tmp_path / "ca.pem")
    settings = KvSettings()
    pd = await PdClient.connect([cluster.pd_addr], tls=tls, settings=settings)
    rpc = RpcClient(tls, settings)
    cache = RegionCache(pd, settings)
    sender = RegionSender(cache, rpc, SYSTEM, settings)
    bo = Backoffer(20_000)
    location = await cache.locate(bo, b"k")
    request = kvrpcpb.GetRequest(key=b"k", version=await pd.timestamp())
    answer = await sender.send(bo, "KvGet", request, location.region)
    assert answer.not_found
    await sender.close()
    await rpc.close()
    await pd.close()
    await cluster.stop()


async def test_a_client_without_the_right_certificate_is_refused(tmp_path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = Authority("ours"), Authority("theirs")
    cluster = await start(tmp_path, server_side(ours.issue(tmp_path / "ours", "server"), mutual=True))
    wrong = theirs.issue(tmp_path / "theirs", "client")
    only_authority = TlsSettings(ca_path=tmp_path / "ours" / "ca.pem")
    for tls in (wrong, only_authority, None):
        with pytest.raises(Unavailable, match="no placement driver answers"):
            await PdClient.connect([cluster.pd_addr], tls=tls)
    await cluster.stop()


async def test_tls_files_that_cannot_be_used_are_named(tmp_path):
    missing = TlsSettings(ca_path=tmp_path / "nowhere.pem")
    with pytest.raises(Invalid, match=r"nowhere\.pem cannot be read"):
        await PdClient.connect(["127.0.0.1:1"], tls=missing)
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(Invalid, match=r"empty\.pem holds no PEM certificate"):
        await PdClient.connect(["127.0.0.1:1"], tls=TlsSettings(ca_path=tmp_path / "empty.pem"))


def credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    authority, certificate, key = tls.read()
    return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)


@pytest.mark.parametrize("batch", [128, 0], ids=["batch", "unary"])
async def test_replaced_certificates_are_picked_up_without_a_restart(tmp_path, fakes, batch):
    store = fakes.Store(1)
    before = Authority("before")
    await store.start(credentials(before.issue(tmp_path, "server")))
    rpc = RpcClient(before.issue(tmp_path, "client"), KvSettings(max_batch_size=batch))
    request = kvrpcpb.GetRequest(key=b"k")
    assert (await rpc.send(store.addr, "KvGet", request, timeout_s=5)).value == b"value of k"
    await store.stop()
    after = Authority("after")  # nothing the old authority signed is accepted any more
    after.issue(tmp_path, "client")
    await store.start(credentials(after.issue(tmp_path, "server")))
    deadline = SYSTEM.monotonic() + 15
    while True:
        try:
            answer = await rpc.send(store.addr, "KvGet", request, timeout_s=2)
            break
        except RpcFailed:
            assert SYSTEM.monotonic() < deadline, "the new certificates were not picked up"
            await SYSTEM.sleep(0.05)
    assert answer.value == b"value of k"
    await rpc.close()
    await store.stop()
