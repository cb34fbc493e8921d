"""`penstock api` as a person runs it: before its cluster is there, while it is, and how it ends."""

import re
from pathlib import Path

import httpx
import yaml

from penstock.clock import SYSTEM
from support.command import ServiceProcess, penstock
from support.warmstore import WarmStore

_WAIT_S = 60.0


def written(path: Path, **tree: object) -> str:
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def test_it_serves_before_its_cluster_is_there_and_ends_when_asked(tmp_path: Path) -> None:
    quick = written(tmp_path / "store.yaml", store={"sync": False})
    store = WarmStore.start(tmp_path / "kv", stores=1, config=Path(quick))
    pd_addr = store.pd_addr
    store.kill()
    config = written(
        tmp_path / "penstock.yaml",
        pd_addrs=[pd_addr],
        api={"addr": "127.0.0.1:0"},
        capture={"storage": f"file://{tmp_path}/events"},
        up={"data": str(tmp_path / "up")},
        secrets_dir=str(tmp_path / "secrets"),
    )
    service = ServiceProcess(tmp_path / "api.log", "--log-format", "json", "api", "--config", config)
    with service:
        url = service.ready["api"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        assert service.ready["admin_token_path"] == f"{tmp_path}/secrets/admin.token"
        token = Path(service.ready["admin_token_path"]).read_text().strip()
        admin = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=_WAIT_S)
        assert httpx.get(f"{url}/api/v1/tables").status_code == 401
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        away = httpx.get(f"{url}/ready", timeout=_WAIT_S)
        assert (away.status_code, away.json()["ready"]) == (503, False)
        told = admin.get(f"{url}/api/v1/tables?nothing=1")
        assert told.status_code == 400
        told = admin.get(f"{url}/api/v1/tables")
        assert (told.status_code, "retry-after" in told.headers) == (503, True)
        with WarmStore.start(tmp_path / "kv", stores=1, pd_addr=pd_addr, config=Path(quick)):
            deadline = SYSTEM.monotonic() + _WAIT_S
            while httpx.get(f"{url}/ready", timeout=_WAIT_S).status_code != 200:
                assert SYSTEM.monotonic() < deadline, "it does not see that the cluster is back"
                SYSTEM.pause(0.1)
            assert admin.get(f"{url}/api/v1/tables").json() == []
            assert "penstock_api_requests_total" in admin.get(f"{url}/metrics").text
            assert service.terminate() == 0
        admin.close()
    assert "Traceback" not in service.log
    assert token not in service.log
    assert '"path": "/api/v1/tables"' in service.log
    assert "nothing=1" not in service.log, "queries are not logged"


def test_it_is_not_shown_to_others_unguarded(tmp_path: Path) -> None:
    config = written(tmp_path / "penstock.yaml", api={"addr": "0.0.0.0:0"})
    refused = penstock("api", "--config", config, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines() == [
        "penstock: api.addr 0.0.0.0:0 can be reached from other machines; set api.tls and api.accounts and"
        " api.hosts, or listen on 127.0.0.1"
    ]
