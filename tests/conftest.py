"""Async tests run on the process's one event loop, beside the blocking facade they may test."""

import inspect

import pytest

from penstock import eventloop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    eventloop.run(pyfuncitem.obj(**wanted))
    return True
