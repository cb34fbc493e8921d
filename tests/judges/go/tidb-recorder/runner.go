package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pingcap/tidb/pkg/kv"
	"github.com/pingcap/tidb/pkg/parser/charset"
	"github.com/pingcap/tidb/pkg/parser/mysql"
	"github.com/pingcap/tidb/pkg/session"
	sessions "github.com/pingcap/tidb/pkg/session/types"
	"github.com/pingcap/tidb/pkg/types"
	"github.com/pingcap/tidb/pkg/util/chunk"
	"github.com/pingcap/tidb/pkg/util/sqlexec"
)

type statement struct {
	Number int    `json:"n"`
	SQL    string `json:"sql"`
	Error  string `json:"error"`
}

type table struct {
	Columns []string    `json:"columns"`
	Types   []string    `json:"types"`
	Create  string      `json:"create"`
	Rows    [][]*string `json:"rows"`
}

type point struct {
	Name   string           `json:"name"`
	TS     uint64           `json:"ts"`
	Tables map[string]table `json:"tables"`
}

type runner struct {
	ctx     context.Context
	store   kv.Storage
	output  *output
	session sessions.Session // runs the script
	steps   *bufio.Reader    // a line for each CHECKPOINT that may be left; nil for all of them
	looks   sessions.Session // reads the points, so that a point inside a transaction is what others see
	other   sessions.Session // runs what stands beside the next statement
	beside  []string
}

func (r *runner) run(instructions []instruction) error {
	var err error
	if r.session, err = session.CreateSession(r.store); err != nil {
		return err
	}
	defer r.session.Close()
	if r.looks, err = session.CreateSession(r.store); err != nil {
		return err
	}
	defer r.looks.Close()
	if r.other, err = session.CreateSession(r.store); err != nil {
		return err
	}
	defer r.other.Close()
	for _, setting := range []string{"SET time_zone = '+00:00'", "SET tidb_enable_1pc = OFF", "SET tidb_enable_async_commit = OFF"} {
		if _, err := r.query(r.looks, setting); err != nil {
			return err
		}
	}
	for number, instruction := range instructions {
		r.output.begin(number + 1)
		if instruction.checkpoint != "" {
			if err := r.point(instruction.checkpoint); err != nil {
				return err
			}
			if r.steps != nil {
				if _, err := r.steps.ReadString('\n'); err != nil {
					return err
				}
			}
			continue
		}
		done := statement{Number: number + 1, SQL: instruction.text}
		if instruction.beside {
			r.beside = append(r.beside, instruction.statement)
		} else if err := r.executeBesides(instruction); err != nil {
			done.Error = err.Error()
		}
		r.output.add("statement", done)
	}
	if err := r.point("end"); err != nil {
		return err
	}
	return r.jobs()
}

// executeBesides runs a statement while the other session runs in turn what stands beside it. A statement that
// fails there has met a schema that changed or a row that is there already: the next one goes on.
func (r *runner) executeBesides(instruction instruction) error {
	statements := r.beside
	r.beside = nil
	if len(statements) == 0 {
		return r.execute(instruction)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = r.query(r.other, strings.ReplaceAll(statements[i%len(statements)], "%d", fmt.Sprint(i)))
			}
		}
	}()
	err := r.execute(instruction)
	close(stop)
	<-stopped
	return err
}

func (r *runner) execute(instruction instruction) error {
	if instruction.bulk == 0 {
		_, err := r.query(r.session, instruction.statement)
		return err
	}
	if _, err := r.query(r.session, "BEGIN"); err != nil {
		return err
	}
	for i := 0; i < instruction.bulk; i++ {
		if _, err := r.query(r.session, strings.ReplaceAll(instruction.statement, "%d", fmt.Sprint(i))); err != nil {
			return err
		}
	}
	_, err := r.query(r.session, "COMMIT")
	return err
}

// answer is a result with its columns; NULL is nil.
type answer struct {
	columns []string
	types   []string
	rows    [][]*string
}

func (r *runner) query(session sessions.Session, sql string) (answer, error) {
	var all answer
	results, err := session.Execute(r.ctx, sql)
	if err != nil {
		return all, err
	}
	for _, result := range results {
		all, err = r.drain(result)
		if closed := result.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func (r *runner) drain(result sqlexec.RecordSet) (answer, error) {
	var drained answer
	var fields []*types.FieldType
	for _, field := range result.Fields() {
		drained.columns = append(drained.columns, field.Column.Name.O)
		drained.types = append(drained.types, field.Column.FieldType.CompactStr())
		fields = append(fields, &field.Column.FieldType)
	}
	drained.rows = [][]*string{}
	for {
		rows := result.NewChunk(nil)
		if err := result.Next(r.ctx, rows); err != nil {
			return drained, err
		}
		if rows.NumRows() == 0 {
			return drained, nil
		}
		for i := 0; i < rows.NumRows(); i++ {
			row, err := texts(rows.GetRow(i), fields)
			if err != nil {
				return drained, err
			}
			drained.rows = append(drained.rows, row)
		}
	}
}

// texts are the values as TiDB prints them; binary strings and bits in hex.
func texts(row chunk.Row, fields []*types.FieldType) ([]*string, error) {
	values := make([]*string, len(fields))
	for i, field := range fields {
		datum := row.GetDatum(i, field)
		if datum.IsNull() {
			continue
		}
		var text string
		switch {
		case field.GetType() == mysql.TypeBit, types.IsString(field.GetType()) && field.GetCharset() == charset.CharsetBin:
			text = "0x" + hex.EncodeToString(datum.GetBytes())
		default:
			var err error
			if text, err = datum.ToString(); err != nil {
				return nil, err
			}
		}
		values[i] = &text
	}
	return values, nil
}

// point writes every base table that is no system table, as TiDB reads it now.
func (r *runner) point(name string) error {
	version, err := r.store.CurrentVersion(kv.GlobalTxnScope)
	if err != nil {
		return err
	}
	names, err := r.query(r.looks, "SELECT table_schema, table_name FROM information_schema.tables "+
		"WHERE table_type = 'BASE TABLE' AND LOWER(table_schema) NOT IN "+
		"('mysql', 'information_schema', 'performance_schema', 'metrics_schema', 'sys')")
	if err != nil {
		return err
	}
	found := point{Name: name, TS: version.Ver, Tables: map[string]table{}}
	for _, row := range names.rows {
		quoted := quote(*row[0]) + "." + quote(*row[1])
		rows, err := r.query(r.looks, "SELECT * FROM "+quoted)
		if err != nil {
			return err
		}
		create, err := r.query(r.looks, "SHOW CREATE TABLE "+quoted)
		if err != nil {
			return err
		}
		found.Tables[*row[0]+"."+*row[1]] = table{
			Columns: rows.columns, Types: rows.types, Create: *create.rows[0][1], Rows: rows.rows,
		}
	}
	r.output.add("point", found)
	return nil
}

func (r *runner) jobs() error {
	jobs, err := r.query(r.looks, "ADMIN SHOW DDL JOBS 10000")
	if err != nil {
		return err
	}
	for _, row := range jobs.rows {
		r.output.add("ddljob", row)
	}
	return nil
}

func quote(name string) string {
	return "`" + strings.ReplaceAll(name, "`", "``") + "`"
}
