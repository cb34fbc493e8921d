// The recorder runs a script of SQL through TiDB in this process and writes what TiDB did, as lines of JSON on
// standard output: every transaction that commits, every statement, and at each CHECKPOINT every table as TiDB reads it.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/pingcap/log"
	"github.com/pingcap/tidb/pkg/domain"
	"github.com/pingcap/tidb/pkg/kv"
	"github.com/pingcap/tidb/pkg/session"
	"github.com/pingcap/tidb/pkg/store/mockstore"
	"github.com/tikv/client-go/v2/tikv"
	"go.uber.org/zap"
)

func main() {
	script := flag.String("script", "", "the file of statements")
	step := flag.Bool("step", false, "wait for a line on standard input after each CHECKPOINT")
	level := flag.String("log-level", "error", "TiDB's log level; its log goes to standard error")
	flag.Parse()
	if err := run(*script, *level, *step); err != nil {
		fmt.Fprintln(os.Stderr, "recorder:", err)
		os.Exit(1)
	}
}

func run(script, level string, step bool) error {
	text, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	instructions, err := parseScript(string(text))
	if err != nil {
		return err
	}
	if err := logToStandardError(level); err != nil {
		return err
	}
	lines, err := reserveStandardOutput()
	if err != nil {
		return err
	}
	output := newOutput(lines)
	store, tidb, err := startTiDB(output)
	if err != nil {
		return err
	}
	defer store.Close()
	defer tidb.Close()
	runner := &runner{ctx: context.Background(), store: store, output: output}
	if step {
		runner.steps = bufio.NewReader(os.Stdin)
	}
	if err := runner.run(instructions); err != nil {
		return err
	}
	return output.close()
}

// reserveStandardOutput returns standard output, and has what others print there go to standard error: some of TiDB's
// packages log before anybody can say where to.
func reserveStandardOutput() (*os.File, error) {
	descriptor, err := syscall.Dup(int(os.Stdout.Fd()))
	if err != nil {
		return nil, err
	}
	if err := syscall.Dup3(int(os.Stderr.Fd()), int(os.Stdout.Fd()), 0); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(descriptor), "output"), nil
}

func logToStandardError(level string) error {
	logger, properties, err := log.InitLoggerWithWriteSyncer(
		&log.Config{Level: level}, zapSink{os.Stderr}, zapSink{os.Stderr}, zap.AddStacktrace(zap.FatalLevel))
	if err != nil {
		return err
	}
	log.ReplaceGlobals(logger, properties)
	return nil
}

// zapSink leaves standard error unsynchronized: a pipe has nothing to sync.
type zapSink struct{ *os.File }

func (zapSink) Sync() error { return nil }

// startTiDB bootstraps TiDB over a store of its own whose client writes every transaction to the output.
func startTiDB(output *output) (kv.Storage, *domain.Domain, error) {
	store, err := mockstore.NewMockStore(
		mockstore.WithStoreType(mockstore.EmbedUnistore),
		mockstore.WithClientHijacker(func(client tikv.Client) tikv.Client {
			return &recordingClient{Client: client, output: output, transactions: map[uint64]*transaction{}}
		}),
	)
	if err != nil {
		return nil, nil, err
	}
	session.SetSchemaLease(500 * time.Millisecond)
	session.DisableStats4Test() // statistics write tables of their own at any time
	domain.DisablePlanReplayerBackgroundJob4Test()
	domain.DisableDumpHistoricalStats4Test()
	tidb, err := session.BootstrapSession(store)
	if err != nil {
		return nil, nil, err
	}
	tidb.SetStatsUpdating(true)
	return store, tidb, nil
}
