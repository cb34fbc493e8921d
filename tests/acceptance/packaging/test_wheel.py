"""Penstock as people install it: the wheel, by pip, in environments that have nothing else.

One has no extra, the other one `lance`. They take packages from where `make setup` takes them, and pip's
cache has them by then.
"""

import ast
import fcntl
import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml

import penstock
from penstock.clock import SYSTEM
from penstock.extras import EXTRAS
from support.docworld import free_port
from support.spark import QUICK_SPARK

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"
BUILD = ROOT / "build"
CONSTRAINTS = ROOT / "constraints.txt"
SHOWN = ("127.0.0.1:2379", "127.0.0.1:8300", "127.0.0.1:8815")
COMMAND_S = 120.0
DEADLINE_S = 120.0

SHOP = """
import sys
from penstock import Catalog, Client

with Client.connect(sys.argv[1:]) as client:
    db = Catalog(client)
    db.create_database("shop")
    db.create_table("shop.orders", [("id", "bigint primary key"), ("note", "text")])
    orders = db.table("shop.orders")
    orders.insert([{"id": 1, "note": "green shoes"}, {"id": 2, "note": "a red coat"}])
    orders.update([{"id": 2, "note": "a green coat"}])
"""
IMPORT_ALL = """
import importlib, json, pkgutil
import penstock

missing = set()
for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing.add(error.name.partition(".")[0])
print(json.dumps(sorted(missing)))
"""
FOR_TESTS = """
import importlib, pkgutil, sys
import penstock.testing

assert penstock.__file__.startswith(sys.prefix), penstock.__file__
for module in pkgutil.iter_modules(penstock.testing.__path__):
    importlib.import_module(f"penstock.testing.{module.name}")
    print(module.name)
assert not {"hypothesis", "moto", "pytest"} & {name.partition(".")[0] for name in sys.modules}
"""

pytestmark = pytest.mark.timeout(900)


def run(command: list[str | Path], **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the build backend that is installed: no package is fetched for that."""
    folder = tmp_path_factory.mktemp("dist")
    built = run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


class Installed:
    """An environment, and an empty directory with an empty home to run its commands in."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.programs = environment / "bin"
        self.folder = folder / "work"
        self.folder.mkdir()
        (folder / "home").mkdir()
        self.environment = {
            "HOME": str(folder / "home"),
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
        }

    def python(self, script: str, *arguments: str) -> str:
        done = self._run(["python", "-c", script, *arguments])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def penstock(self, *arguments: str, code: int | None = 0) -> str:
        """What a command prints: to standard output, or to standard error where it fails. No code: any."""
        done = self._run(["penstock", *arguments])
        assert code in {None, done.returncode}, (arguments, done.stdout, done.stderr)
        return done.stderr if done.returncode else done.stdout

    def _run(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        first, *rest = command
        return run([self.programs / first, *rest], cwd=self.folder, env=self.environment, timeout=COMMAND_S)


@pytest.fixture(scope="module")
def environments(wheel: Path) -> Iterator[Path]:
    """A folder with two environments: the wheel and what it requires (`bare`), and the extra `lance` as well.

    They stay below `build` as long as the requirements are the same; only the wheel is installed again then.
    Whoever else runs this test in the clone waits.
    """
    requirements = [*headers_of(wheel).get_all("Requires-Dist", []), sys.version, CONSTRAINTS.read_text()]
    folder = BUILD / f"wheels-{hashlib.sha256(repr(requirements).encode()).hexdigest()[:12]}"
    complete = folder / "complete"
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for other in BUILD.glob("wheel*-*"):
            if other != folder or not complete.exists():
                shutil.rmtree(other)
        if not complete.exists():
            run([sys.executable, "-m", "venv", "--without-pip", folder / "bare"]).check_returncode()
            pip_install(folder / "bare", "--constraint", str(CONSTRAINTS), str(wheel))
            shutil.copytree(folder / "bare", folder / "lance", symlinks=True, copy_function=os.link)
            pip_install(folder / "lance", "--constraint", str(CONSTRAINTS), f"{wheel}[lance]")
            complete.touch()
        for name in ("bare", "lance"):
            pip_install(folder / name, "--no-index", "--force-reinstall", "--no-deps", str(wheel))
        yield folder


@pytest.fixture(scope="module")
def installed(environments: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(environments / "lance", tmp_path_factory.mktemp("installed"))


def pip_install(environment: Path, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", f"{environment}/bin/python", "--retries", "2"]
    done = run([*pip, "install", "--quiet", "--no-compile", *arguments])
    if done.returncode and "connection" in done.stderr.lower():
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    checked = run([*pip, "check"])
    assert checked.returncode == 0, checked.stdout


@pytest.fixture(scope="module")
def up(installed: Installed) -> Iterator[str]:
    """What `penstock init` writes is run by `penstock up`; gives the address of its placement driver."""
    installed.penstock("init")
    settings = installed.folder / "penstock.yaml"
    text = settings.read_text().replace("#flight_addr", "flight_addr")
    addresses = {shown: f"127.0.0.1:{free_port()}" for shown in SHOWN}
    for shown, here in addresses.items():
        text = text.replace(shown, here)
    settings.write_text(f"{text}\n{yaml.safe_dump({'spark': QUICK_SPARK})}")
    command = [installed.programs / "penstock", "up", "--config", "penstock.yaml"]
    with (
        (installed.folder.parent / "up.log").open("w+") as log,
        subprocess.Popen(
            command,
            cwd=installed.folder,
            env=installed.environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        readable, _, _ = select.select([child.stdout], [], [], DEADLINE_S)
        line = child.stdout.readline() if readable else ""
        try:
            assert line, (installed.folder.parent / "up.log").read_text()
            yield addresses[SHOWN[0]]
        finally:
            child.terminate()
            assert child.wait(DEADLINE_S) == 0


def headers_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def test_the_wheel_has_the_product_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    product = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == product
    assert {name.partition("/")[0] for name in names} == {"penstock", "pyspark_penstock"}
    assert {"penstock/py.typed", "penstock/__init__.pyi", "penstock/api/static/index.html"} <= names


def test_the_version_is_in_one_place(wheel: Path) -> None:
    tree = ast.parse((SOURCE / "penstock/__init__.py").read_text())
    (version,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert headers_of(wheel)["Version"] == version
    assert f"-{version}-py3-none-any" in wheel.name


def test_the_interpreters_that_are_declared_are_those_that_are_tried(wheel: Path) -> None:
    headers = headers_of(wheel)
    prefix = "Programming Language :: Python :: 3."
    minors = [int(each.removeprefix(prefix)) for each in headers.get_all("Classifier", []) if prefix in each]
    assert headers["Requires-Python"] == f"<3.{max(minors) + 1},>=3.{min(minors)}"
    (versions,) = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("VERSIONS")
    ]
    assert versions == f"VERSIONS := {' '.join(f'3.{minor}' for minor in minors)}"


def test_without_an_extra_the_commands_and_the_modules_that_need_none_work(
    environments: Path, tmp_path: Path
) -> None:
    bare = Installed(environments / "bare", tmp_path)
    assert bare.penstock("--version") == f"penstock {penstock.__version__}\n"
    bare.penstock("init")
    assert (bare.folder / "penstock.yaml").exists()
    assert json.loads(bare.python(IMPORT_ALL)) == sorted(set(EXTRAS) - {"boto3"}), (
        "boto3 is imported when it is first used"
    )


def test_doubles_for_authors_of_consumers_need_no_development_packages(installed: Installed) -> None:
    assert {"clock", "consumers", "directory", "proxy", "store"} <= set(installed.python(FOR_TESTS).split())


def test_init_up_a_changefeed_and_a_search_work_from_there(installed: Installed, up: str) -> None:
    config = ("--config", "penstock.yaml")
    installed.python(SHOP, up)
    target = f"file://{installed.folder}/changes"
    sink = f"{target}?protocol=canal-json&enable-tidb-extension=true"
    feed = ("--table", "shop.orders", "--start", "snapshot", "--sink-uri", sink)
    installed.penstock("changefeed", "create", "orders", *feed, *config)
    options = ("--option", "uri=index", "--option", "text_columns=note")
    installed.penstock("job", "register", "shop.orders/search", "--consumer", "fulltext", *options, *config)
    installed.penstock("job", "status", "shop.orders/search", "--wait-for", "now", *config)

    found = json.loads(installed.penstock("search", "shop.orders/search", "coat", *config))
    assert [row["note"] for row in found["rows"]] == ["a green coat"]
    deadline, consumed = SYSTEM.monotonic() + DEADLINE_S, ""
    while "a green coat" not in consumed:
        assert SYSTEM.monotonic() < deadline, (installed.folder.parent / "up.log").read_text()
        consumed = installed.penstock("consume", target, code=None)  # refused before the first checkpoint
    rows = {
        row["id"]: row["note"]
        for row in (json.loads(line).get("row", {}) for line in consumed.splitlines())
        if row
    }
    assert rows == {1: "green shoes", 2: "a green coat"}


def test_a_job_whose_extra_is_not_installed_is_refused_in_one_line(installed: Installed, up: str) -> None:
    delta = ("register", "shop.orders/copy", "--consumer", "delta", "--option", "uri=copy", "--pd", up)
    assert installed.penstock("job", *delta, code=2) == (
        "penstock: consumer delta needs the package deltalake;"
        " install it with: pip install 'penstock[delta]'\n"
    )
