"""Our processes choose how libraries behave before they import them: Arrow's allocator, gRPC's log."""

import os
import re
import subprocess
import sys

from penstock import process

_BACKEND = "import pyarrow; print(pyarrow.default_memory_pool().backend_name)"


def backend(code: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in process.LIBRARY_ENVIRONMENT}
    made = subprocess.run(
        [sys.executable, "-c", f"{code}\n{_BACKEND}"],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.splitlines()[-1]


def test_the_command_line_chooses_the_allocator_before_arrow_is_imported() -> None:
    code = (
        "import sys; sys.argv = ['penstock', '--version']\n"
        "from penstock.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass"
    )
    assert backend(code) == "jemalloc"


def test_an_allocator_that_somebody_chose_stays() -> None:
    prepared = "from penstock import process; process.prepare_libraries()"
    assert backend(prepared, ARROW_DEFAULT_MEMORY_POOL="system") == "system"


def test_a_connection_that_a_peer_closes_writes_no_line_of_grpcs_own() -> None:
    code = """
from penstock import process
process.prepare_libraries()
import asyncio, grpc

class Slow(grpc.GenericRpcHandler):
    def service(self, details):
        async def answer(request, context):
            asked.set()
            await asyncio.sleep(60)
        return grpc.unary_unary_rpc_method_handler(answer)

async def main():
    global asked
    for _ in range(4):
        asked = asyncio.Event()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Slow(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/slow/call")(b"")
            await asked.wait()
            await server.stop(0)
            try:
                await call
            except grpc.RpcError as error:
                print(error.code().name)

asyncio.run(main())
"""
    inherited = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=inherited, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == ["UNAVAILABLE"] * 4
    of_grpc = [line for line in ran.stderr.splitlines() if re.match(r"[IWEF]\d{4} ", line)]
    assert of_grpc == [], "the handlers that were ended may say so, in Python's form"
