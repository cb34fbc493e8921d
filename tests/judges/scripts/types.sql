-- Every column type, at its limits.
-- Left out: the year 0. TiCDC's csv has it as 0, its consumer sends that as text, and MariaDB reads the text '0' as 2000.
SET time_zone = '+00:00';
SET GLOBAL tidb_ddl_enable_fast_reorg = OFF;
SET GLOBAL tidb_enable_dist_task = OFF;
SET sql_mode = 'ALLOW_INVALID_DATES';
CREATE DATABASE d1;
CREATE DATABASE d2 CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci;
CREATE TABLE d1.types (
 id BIGINT PRIMARY KEY CLUSTERED,
 ti TINYINT, tu TINYINT UNSIGNED, si SMALLINT, su SMALLINT UNSIGNED, mi MEDIUMINT, mu MEDIUMINT UNSIGNED,
 i INT, iu INT UNSIGNED, b BIGINT, bu BIGINT UNSIGNED, bo BOOL,
 f FLOAT, db DOUBLE, f52 FLOAT(5,2), d102 DOUBLE(10,2), de DECIMAL(65,30), de0 DECIMAL(10,0), de2 DECIMAL(12,2) UNSIGNED,
 da DATE, dt DATETIME, dt3 DATETIME(3), dt6 DATETIME(6), ts TIMESTAMP NULL, ts6 TIMESTAMP(6) NULL, t TIME, t6 TIME(6), y YEAR,
 c CHAR(20), vc VARCHAR(200), bi BINARY(8), vb VARBINARY(100), tb TINYBLOB, bl BLOB, mb MEDIUMBLOB, lb LONGBLOB,
 tt TINYTEXT, te TEXT, mt MEDIUMTEXT, lt LONGTEXT,
 en ENUM('a','b','c d',''), se SET('x','y','z'), b1 BIT(1), b10 BIT(10), b64 BIT(64), j JSON,
 ci VARCHAR(50) COLLATE utf8mb4_general_ci, la VARCHAR(50) CHARACTER SET latin1, gb VARCHAR(50) CHARACTER SET gbk, asci VARCHAR(50) CHARACTER SET ascii
);
INSERT INTO d1.types VALUES (1,
 -128,255,-32768,65535,-8388608,16777215,-2147483648,4294967295,-9223372036854775808,18446744073709551615,true,
 1.5,-1.25e300,123.45,12345678.91,'12345678901234567890123456789012345.123456789012345678901234567890',-9999999999,'9999999999.99',
 '2024-02-29','2024-02-29 23:59:59','2024-02-29 23:59:59.123','9999-12-31 23:59:59.999999','2024-02-29 23:59:59','2024-02-29 23:59:59.654321','-838:59:59','12:34:56.000001',2155,
 'char','varchar äöü 😀',x'0102','abc\0def',x'00ff',x'deadbeef',x'00',x'ffffffff',
 'tiny','text\nline\r\n"q" \\ back','medium','long', 'c d','x,z',b'1',b'1010101010',x'ffffffffffffffff',
 '{"a":[1,2.5,"x",null,true,{"b":"ü"}],"n":18446744073709551615,"d":1e100,"k":-9223372036854775808}',
 'CaseLess','lätin','汉字','ascii');
INSERT INTO d1.types (id) VALUES (2);
INSERT INTO d1.types VALUES (3,
 127,0,32767,0,8388607,0,2147483647,0,9223372036854775807,0,false,
 0.1,3.141592653589793,-0.01,-0.01,'-0.000000000000000000000000000001',0,'0.00',
 '0000-00-00','0000-00-00 00:00:00','2024-00-00 00:00:00','1000-01-01 00:00:00','0000-00-00 00:00:00','1970-01-01 00:00:01.000000','838:59:59','-00:00:00.000001',1901,
 '','',x'',x'',x'',x'',x'',x'','','','','','','',b'0',b'0',b'0','[]','','','','');
INSERT INTO d1.types (id,dt,da,j,vc,en,se,b64) VALUES (-5,'2024-02-31 10:00:00','2023-11-31','"str"','trailing  ',4,7,b'1'),(9223372036854775807,'2024-01-01','2024-01-01','null',REPEAT('x',200),1,0,b'0'),(-9223372036854775808,NULL,NULL,'{"dt":"2024"}','',NULL,NULL,NULL);
INSERT INTO d1.types (id,j) VALUES (10, JSON_OBJECT('date', CAST('2024-01-02' AS DATE), 'dt', CAST('2024-01-02 03:04:05.678901' AS DATETIME(6)), 'time', CAST('12:13:14.15' AS TIME(2)), 'dec', CAST('1.50' AS DECIMAL(5,2)), 'bin', CAST('abc' AS BINARY(5)), 'big', REPEAT('y', 300), 'u', CAST(5 AS UNSIGNED), 'f', 1.0));
INSERT INTO d1.types (id,j,te,lb) VALUES (11, CONCAT('[', REPEAT('{"k":"vvvvvvvvvvvvvvvvvvvv"},', 3000), '1]'), REPEAT('0123456789', 6000), REPEAT('z', 200000));
UPDATE d1.types SET f=f+1, vc=CONCAT(vc,'!'), j=JSON_SET(j,'$.new',1) WHERE id=1;
UPDATE d1.types SET ti=NULL, en='b', se='y', b1=b'0', de='1.5' WHERE id IN (1,3);
DELETE FROM d1.types WHERE id=2;
