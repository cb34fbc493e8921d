package main

import (
	"bufio"
	"encoding/json"
	"os"
	"sync"
)

// output writes lines in the order in which they were added. Adding never waits for the reader of the pipe: a
// transaction that waited in its commit would lose its locks to others.
type output struct {
	mutex     sync.Mutex
	changed   *sync.Cond
	lines     [][]byte
	closing   bool
	statement int
	done      chan error
}

func newOutput(file *os.File) *output {
	o := &output{done: make(chan error, 1)}
	o.changed = sync.NewCond(&o.mutex)
	go func() { o.done <- o.write(bufio.NewWriter(file)) }()
	return o
}

func (o *output) write(writer *bufio.Writer) error {
	for {
		o.mutex.Lock()
		for len(o.lines) == 0 && !o.closing {
			o.changed.Wait()
		}
		lines := o.lines
		o.lines = nil
		o.mutex.Unlock()
		if len(lines) == 0 {
			return nil
		}
		for _, line := range lines {
			if _, err := writer.Write(append(line, '\n')); err != nil {
				return err
			}
		}
		if err := writer.Flush(); err != nil {
			return err
		}
	}
}

// add queues `{"kind": value}`.
func (o *output) add(kind string, value any) {
	line, err := json.Marshal(map[string]any{kind: value})
	if err != nil {
		panic(err) // every value is a struct of this program
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.lines = append(o.lines, line)
	o.changed.Signal()
}

// begin names the statement that the transactions after it belong to.
func (o *output) begin(statement int) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.statement = statement
}

func (o *output) current() int {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return o.statement
}

// close waits until every line is with the reader.
func (o *output) close() error {
	o.mutex.Lock()
	o.closing = true
	o.changed.Signal()
	o.mutex.Unlock()
	return <-o.done
}
