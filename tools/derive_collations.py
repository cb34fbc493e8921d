"""Derives the weights of collations that are not in the order of bytes (src/penstock/tables/codec/weights).

TiDB has MySQL's collations. Their weights come from two public sources:

* a MariaDB server, which has the same ones: `utf8mb4_general_ci`, `utf8mb4_unicode_ci` (the collation
  element table of Unicode 4.0.0) and `gbk_chinese_ci`. WEIGHT_STRING tells the weights of every character;
* the collation element table of Unicode 9.0.0 for `utf8mb4_0900_ai_ci`, which pyuca on PyPI
  has as `pyuca/allkeys-9.0.0.txt`.

    python tools/derive_collations.py --socket mariadb.sock --allkeys allkeys-9.0.0.txt
"""

import argparse
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

WEIGHTS = Path(__file__).parents[1] / "src/penstock/tables/codec/weights"
BMP_END = 0x10000
SURROGATES = range(0xD800, 0xE000)
LINE_CHARACTERS = 48
BACKSLASH = 0x5C  # weighs 5D in MySQL, and 5C in TiDB
LIGATURE, LIGATURE_WEIGHTS = 0xFDFA, 8  # has 18 weights, of which MySQL takes the first
TIDB_END = 0x2CEA1  # TiDB derives the weights of all later characters, listed or not

Weights = tuple[int, ...]


def ask_weights(socket: str, charset: str, collation: str) -> dict[int, str]:
    """Return the weights of each character of the basic plane, in hexadecimal."""
    character = "convert(unhex(lpad(hex(seq), 8, '0')) using utf32)"
    query = f"select seq, hex(weight_string(convert({character} using {charset}) collate {collation}))"
    answer = subprocess.run(  # noqa: S603
        ["mariadb", "--user=root", f"--socket={socket}", "--batch", "--skip-column-names"],  # noqa: S607
        input=f"{query} from mysql.seq_0_to_{BMP_END - 1}",
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    pairs = (line.split("\t") for line in answer.splitlines())
    return {int(number): weights for number, weights in pairs if int(number) not in SURROGATES}


def split_weights(weights: str) -> Weights:
    """Return the 16-bit weights of a hexadecimal text."""
    return tuple(int(weights[at : at + 4], 16) for at in range(0, len(weights), 4))


def read_primary_weights(allkeys: Path) -> dict[int, Weights]:
    """Return the primary weights of single characters that are not zero."""
    table = {}
    for line in allkeys.read_text().splitlines():
        entry = re.match(r"([0-9A-F]{4,6})\s*;\s*((?:\[[^]]*\])+)", line)
        if entry is not None and int(entry[1], 16) < TIDB_END:
            primaries = re.findall(r"\[[.*]([0-9A-F]{4})", entry[2])
            character = int(entry[1], 16)
            kept = primaries[:LIGATURE_WEIGHTS] if character == LIGATURE else primaries
            table[character] = tuple(int(weight, 16) for weight in kept if int(weight, 16))
    return table


def write_runs(table: Mapping[int, Weights]) -> Iterator[str]:
    """Yield a line for each run of characters that have the same weights, or one that grows by one."""
    characters = sorted(table)
    at = 0
    while at < len(characters):
        low, weights = characters[at], table[characters[at]]
        same = grown = at
        while _follows(characters, same) and table[characters[same + 1]] == weights:
            same += 1
        while (
            len(weights) == 1
            and _follows(characters, grown)
            and table[characters[grown + 1]] == (weights[0] + grown + 1 - at,)
        ):
            grown += 1
        high = characters[max(same, grown)]
        where = f"{low:X}" if low == high else f"{low:X}-{high:X}"
        yield " ".join([where, *(f"{weight:X}" for weight in weights)]) + ("+" if grown > same else "")
        at = max(same, grown) + 1


def _follows(characters: list[int], at: int) -> bool:
    return at + 1 < len(characters) and characters[at + 1] == characters[at] + 1


def write_order(weights: Mapping[int, int]) -> Iterator[str]:
    """Yield lines of characters whose weights grow by one, after the first one's weight."""
    line, first, last = "", 0, -1
    for weight, character in sorted((weight, character) for character, weight in weights.items()):
        if line and (weight != last + 1 or len(line) == LINE_CHARACTERS or (weight > 0xFF) != (first > 0xFF)):
            yield f"{first:0{4 if first > 0xFF else 2}X} {line}"
            line = ""
        first = first if line else weight
        line, last = line + chr(character), weight
    yield f"{first:0{4 if first > 0xFF else 2}X} {line}"


def derived(character: int) -> Weights:
    """Return the weights that Unicode 4.0.0 derives for a character without an entry."""
    base = 0xFB40 if 0x4E00 <= character <= 0x9FA5 or character in {0xFA0E, 0xFA0F} else 0xFBC0
    base = 0xFB80 if 0x3400 <= character <= 0x4DB5 else base
    return base + (character >> 15), character & 0x7FFF | 0x8000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--socket", required=True, help="socket of a MariaDB server whose root has no password"
    )
    parser.add_argument("--allkeys", required=True, type=Path, help="allkeys.txt of Unicode 9.0.0")
    options = parser.parse_args()

    general = ask_weights(options.socket, "utf8mb4", "utf8mb4_general_ci")
    folded = {at: split_weights(text) for at, text in general.items() if split_weights(text) != (at,)}
    uca_4 = ask_weights(options.socket, "utf8mb4", "utf8mb4_unicode_ci")
    listed = {at: split_weights(text) for at, text in uca_4.items() if split_weights(text) != derived(at)}
    uca_9 = read_primary_weights(options.allkeys)
    uca_9 |= {0xFFFD: (0xFFFD,)}
    gbk = ask_weights(options.socket, "gbk", "gbk_chinese_ci")
    ordered = {at: int(text, 16) for at, text in gbk.items() if text != "3F" and at != BACKSLASH}

    tables = {
        "general_ci": write_runs(folded),
        "uca_4.0.0": write_runs(listed),
        "uca_9.0.0": write_runs(uca_9),
        "gbk_chinese_ci": write_order({at: weight for at, weight in ordered.items() if weight != at}),
    }
    for name, lines in tables.items():
        head = "# Weights for keys, made by tools/derive_collations.py."
        (WEIGHTS / f"{name}.txt").write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
