-- Columns that share their names with Penstock's own.
SET time_zone = '+00:00';
CREATE DATABASE d1;
CREATE TABLE d1.reserved (id INT PRIMARY KEY, `_handle` INT, `_commit_ts` BIGINT, `_op` VARCHAR(5));
INSERT INTO d1.reserved VALUES (1,2,3,'a'),(2,NULL,NULL,NULL);
ALTER TABLE d1.reserved MODIFY COLUMN `_handle` VARCHAR(20);
UPDATE d1.reserved SET `_handle`='x', `_commit_ts`=7 WHERE id=2;
CREATE TABLE d1.keyed (`_offset` INT PRIMARY KEY, `_old` INT, `_Update` VARCHAR(5), `_object` INT, `_start_ts` INT, UNIQUE KEY (`_old`));
INSERT INTO d1.keyed VALUES (1,10,'a',1,1),(2,20,'b',2,2),(3,30,NULL,NULL,NULL);
UPDATE d1.keyed SET `_old`=31, `_Update`='c' WHERE `_offset`=3;
UPDATE d1.keyed SET `_offset`=4 WHERE `_offset`=1;
DELETE FROM d1.keyed WHERE `_offset`=2;
ALTER TABLE d1.keyed RENAME COLUMN `_object` TO plain;
INSERT INTO d1.keyed VALUES (5,50,'d',5,5);
