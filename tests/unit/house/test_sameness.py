"""The judges hold the definitions of two databases against each other, each as it prints them."""

import pytest

from support.sameness import column_differences, columns_of_mariadb, columns_of_tidb

CREATE = r"""CREATE TABLE `t` (
  `a``b` int(11) unsigned NOT NULL AUTO_INCREMENT COMMENT 'it''s NOT NULL, \\ DEFAULT 5',
  `r` bigint(20) NOT NULL /*T![auto_rand] AUTO_RANDOM(5) */,
  `d` decimal(5,2) DEFAULT '1.10',
  `s` varchar(20) CHARACTER SET gbk COLLATE gbk_chinese_ci DEFAULT 'it''s \n/* x */',
  `u` varchar(9) COLLATE utf8mb4_0900_ai_ci DEFAULT NULL,
  `e` enum('a,b','it''s') NOT NULL DEFAULT 'it''s',
  `j` json DEFAULT NULL,
  `b` bit(8) DEFAULT b'101',
  `x` varchar(36) DEFAULT (uuid()),
  `c` timestamp(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),
  `v` int(11) GENERATED ALWAYS AS (concat(`s`, ') DEFAULT ')) VIRTUAL,
  PRIMARY KEY (`a``b`) /*T![clustered_index] CLUSTERED */
) ENGINE=InnoDB DEFAULT CHARSET=utf8 COLLATE=utf8_bin"""


def said(kind: str, default: str | None = None, nullable: str = "YES", **more: str) -> dict[str, str | None]:
    fields: dict[str, str | None] = {"extra": "", "collation_name": None, "column_comment": ""}
    return fields | {"column_type": kind, "column_default": default, "is_nullable": nullable} | more


def definitions() -> dict[str, dict[str, str | None]]:
    return {
        "a`b": said(
            "int(11) unsigned",
            nullable="NO",
            extra="auto_increment",
            column_comment="it's NOT NULL, \\ DEFAULT 5",
        ),
        "r": said("bigint(20)", nullable="NO"),
        "d": said("decimal(5,2)", "1.10"),
        "s": said("varchar(20)", "'it''s \n/* x */'", collation_name="gbk_chinese_ci"),
        "u": said("varchar(9)", "NULL", collation_name="utf8mb4_bin"),
        "e": said("enum('a,b','it''s')", "'it''s'", nullable="NO", collation_name="utf8mb3_bin"),
        "j": said("longtext", "NULL", collation_name="utf8mb4_bin"),
        "b": said("bit(8)", "b'00000101'"),
        "x": said("varchar(36)", "uuid()", collation_name="utf8mb3_bin"),
        "c": said(
            "timestamp(3)",
            "current_timestamp(3)",
            nullable="NO",
            extra="on update current_timestamp(3)",
        ),
        "v": said("int(11)", "NULL", extra="VIRTUAL GENERATED"),
    }


def test_one_table_is_the_same_in_the_words_of_both() -> None:
    assert list(column_differences(columns_of_tidb(CREATE), columns_of_mariadb(definitions()))) == []


@pytest.mark.parametrize(
    ("name", "field", "value", "what"),
    [
        ("d", "column_type", "decimal(6,2)", "type 'decimal(6,2)', not 'decimal(5,2)'"),
        ("a`b", "column_type", "int(11)", "type 'int(11)'"),
        ("e", "column_type", "enum('a','b,it''s')", "type"),
        ("r", "is_nullable", "YES", "nullable True, not False"),
        ("d", "column_default", None, "default None, not '1.1'"),
        ("d", "column_default", "NULL", "default 'NULL'"),
        ("u", "column_default", "'NULL'", "default \"'NULL'\", not 'NULL'"),
        ("b", "column_default", "b'100'", "default '100', not '101'"),
        ("x", "column_default", "'uuid()'", "default"),
        ("s", "collation_name", "gbk_bin", "collation 'gbk_bin'"),
        ("c", "extra", "", "on_update ''"),
        ("v", "extra", "STORED GENERATED", "generated 'STORED'"),
        ("a`b", "extra", "", "auto_increment False"),
        ("a`b", "column_comment", "its", "comment 'its'"),
    ],
)
def test_each_part_of_a_definition_is_compared(name: str, field: str, value: str | None, what: str) -> None:
    other = definitions()
    other[name][field] = value
    (found,) = column_differences(columns_of_tidb(CREATE), columns_of_mariadb(other))
    assert found.startswith(f"has column {name} with ")
    assert what in found
