"""What the audit of dependencies makes of the advisory service's answers."""

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[3] / "tools" / "audit_dependencies.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_dependencies", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


audit = _load()
SOUND = {"name": "sound", "version": "1.0", "vulns": []}
UNHEARD = {"name": "unheard", "skip_reason": "not found"}
WEAK = {"name": "weak", "version": "2.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}


def test_a_known_vulnerability_is_named_with_what_mends_it() -> None:
    lines, code = audit.summarize({"dependencies": [SOUND, WEAK]})
    assert (lines, code) == (["weak 2.0: CVE-1, fixed in 2.1"], 1)


def test_silence_means_that_all_is_well_only_where_everything_was_audited() -> None:
    assert audit.summarize({"dependencies": [SOUND]}) == ([], 0)
    lines, code = audit.summarize({"dependencies": [SOUND, UNHEARD]})
    assert (lines, code) == (["dependencies not audited: the advisory service knows 1 of 2"], 0)
    lines, code = audit.summarize(None)
    assert ("does not answer" in lines[0], code) == (True, 0)


def test_an_audit_before_a_release_fails_when_it_could_not_ask() -> None:
    assert audit.summarize({"dependencies": [SOUND]}, strict=True) == ([], 0)
    lines, code = audit.summarize({"dependencies": [SOUND, UNHEARD]}, strict=True)
    assert (lines, code) == (["dependencies not audited: the advisory service knows 1 of 2"], 2)
    (line,), code = audit.summarize(None, strict=True)
    assert ("does not answer" in line, code) == (True, 2)
    assert audit.summarize({"dependencies": [WEAK]}, strict=True)[1] == 1
