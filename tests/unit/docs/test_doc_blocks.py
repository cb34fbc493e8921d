"""What a test makes of a page: its blocks in order, and what it refuses to overlook."""

import pytest

from support.docblocks import Block, Command, blocks_of, commands_of, matches

PAGE = """# A page

```yaml
# penstock.yaml
pd_addrs: []
```

<!-- test: service -->
```bash
penstock up
```

Some text.

```python
# shop.py
print(1)
```

```text
only shown
```

<!-- test: not run: there is no such cluster here; instead: another test does it -->
```bash
kubectl apply
```
"""


def test_blocks_come_in_order_with_what_their_notes_say() -> None:
    settings, service, program, cluster = blocks_of(PAGE)
    assert (settings.kind, settings.file, settings.line) == ("yaml", "penstock.yaml", 3)
    assert (service.service, service.text, service.file) == (True, "penstock up\n", None)
    assert (program.file, program.service) == ("shop.py", False)
    assert cluster.left_out


@pytest.mark.parametrize(
    ("page", "refused"),
    [
        ("```sh\nls\n```", "kind 'sh' is neither run nor left out"),
        ("```\nls\n```", "kind '' is neither run"),
        ("```yaml\na: 1\n```", "names its file"),
        ("<!-- test: not run: -->\n```bash\nls\n```", "say `not run: WHY; instead: WHAT`"),
        ("<!-- test: perhaps -->\n```bash\nls\n```", "what does 'perhaps' mean"),
        ("text\n\n    penstock up\n", "fence it"),
    ],
)
def test_a_block_that_nobody_would_run_is_refused(page: str, refused: str) -> None:
    with pytest.raises(ValueError, match=refused):
        blocks_of(page)


def test_a_console_has_commands_with_their_output() -> None:
    block = Block("console", "$ echo a \\\n>   b\na b\n$ true\n", 1)
    assert commands_of(block) == [Command("echo a \\\n  b", "a b"), Command("true", "")]
    with pytest.raises(ValueError, match="begins with"):
        commands_of(Block("console", "output\n", 1))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a\nc\n", False),
        ("a", "a\nb\n", False),
        ('{"ts": ..., "id": 1}', '{"ts": 446, "id": 1}', True),
        ('{"ts": ..., "id": 1}', '{"ts": 446, "id": 2}', False),
        ("a\n...\nd", "a\nb\nc\nd\n", True),
        ("a\n...\nd", "a\nd\n", True),
        ("...\nd", "a\nd\ne\n", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_what_is_shown_is_what_is_printed_but_for_dots(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same
