// An unmodified client of TiKV against the store at os.Args[1]: each check prints its name when it holds.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	tikverr "github.com/tikv/client-go/v2/error"
	"github.com/tikv/client-go/v2/kv"
	"github.com/tikv/client-go/v2/rawkv"
	"github.com/tikv/client-go/v2/txnkv"
	"github.com/tikv/client-go/v2/txnkv/transaction"
)

type check struct {
	name string
	run  func(ctx context.Context, client *txnkv.Client) error
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := runAll(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func runAll(ctx context.Context, pdAddr string) error {
	client, err := txnkv.NewClient([]string{pdAddr})
	if err != nil {
		return err
	}
	defer client.Close()
	checks := []check{
		{"optimistic", optimistic},
		{"conflict", conflict},
		{"pessimistic", pessimistic},
		{"async commit", asyncCommit},
		{"one phase", onePhase},
		{"split and scan", splitAndScan},
		{"batch get", batchGet},
		{"replica read", replicaRead},
		{"deadlock", deadlock},
		{"abandoned locks", abandonedLocks},
		{"large transaction", largeTransaction},
	}
	for _, c := range checks {
		if err := c.run(ctx, client); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Println(c.name)
	}
	if err := raw(ctx, pdAddr); err != nil {
		return fmt.Errorf("raw: %w", err)
	}
	fmt.Println("raw")
	return nil
}

func must(client *txnkv.Client) *transaction.KVTxn {
	txn, err := client.Begin()
	if err != nil {
		panic(err)
	}
	return txn
}

func expect(ctx context.Context, client *txnkv.Client, key, want string) error {
	got, err := must(client).Get(ctx, []byte(key))
	if err != nil {
		return err
	}
	if string(got) != want {
		return fmt.Errorf("%s is %q, want %q", key, got, want)
	}
	return nil
}

func put(ctx context.Context, txn *transaction.KVTxn, key, value string) error {
	if err := txn.Set([]byte(key), []byte(value)); err != nil {
		return err
	}
	return txn.Commit(ctx)
}

func optimistic(ctx context.Context, client *txnkv.Client) error {
	if err := put(ctx, must(client), "o1", "one"); err != nil {
		return err
	}
	txn := must(client)
	if err := txn.Delete([]byte("o1")); err != nil {
		return err
	}
	if err := put(ctx, txn, "o2", "two"); err != nil {
		return err
	}
	if _, err := must(client).Get(ctx, []byte("o1")); !tikverr.IsErrNotFound(err) {
		return fmt.Errorf("a deleted key was read: %v", err)
	}
	return expect(ctx, client, "o2", "two")
}

func conflict(ctx context.Context, client *txnkv.Client) error {
	first, second := must(client), must(client)
	if err := put(ctx, first, "c", "first"); err != nil {
		return err
	}
	if err := put(ctx, second, "c", "second"); !tikverr.IsErrWriteConflict(err) {
		return fmt.Errorf("no write conflict: %v", err)
	}
	return expect(ctx, client, "c", "first")
}

// lock takes a newer timestamp after a conflict, as a statement of a pessimistic transaction does.
func lock(ctx context.Context, txn *transaction.KVTxn, client *txnkv.Client, waitMs int64, key string) error {
	for {
		ts, err := client.CurrentTimestamp("global")
		if err != nil {
			return err
		}
		err = txn.LockKeys(ctx, kv.NewLockCtx(ts, waitMs, time.Now()), []byte(key))
		if !tikverr.IsErrWriteConflict(err) {
			return err
		}
	}
}

func begin(client *txnkv.Client) *transaction.KVTxn {
	txn := must(client)
	txn.SetPessimistic(true)
	return txn
}

func pessimistic(ctx context.Context, client *txnkv.Client) error {
	holder := begin(client)
	if err := lock(ctx, holder, client, kv.LockAlwaysWait, "p"); err != nil {
		return err
	}
	if err := lock(ctx, begin(client), client, kv.LockNoWait, "p"); !errors.Is(err, tikverr.ErrLockAcquireFailAndNoWaitSet) {
		return fmt.Errorf("a held lock was given away: %v", err)
	}
	waiter, waited := begin(client), make(chan error, 1)
	go func() { waited <- lock(ctx, waiter, client, kv.LockAlwaysWait, "p") }()
	if err := put(ctx, holder, "p", "held"); err != nil {
		return err
	}
	if err := <-waited; err != nil {
		return err
	}
	if err := put(ctx, waiter, "p", "waited"); err != nil {
		return err
	}
	return expect(ctx, client, "p", "waited")
}

func asyncCommit(ctx context.Context, client *txnkv.Client) error {
	txn := must(client)
	txn.SetEnableAsyncCommit(true)
	for i := 0; i < 20; i++ {
		if err := txn.Set([]byte(fmt.Sprintf("async%02d", i)), []byte("value")); err != nil {
			return err
		}
	}
	if err := txn.Commit(ctx); err != nil {
		return err
	}
	if !(transaction.TxnProbe{KVTxn: txn}).IsAsyncCommit() {
		return errors.New("it fell back to two phases")
	}
	return expect(ctx, client, "async19", "value")
}

func onePhase(ctx context.Context, client *txnkv.Client) error {
	txn := must(client)
	txn.SetEnable1PC(true)
	if err := put(ctx, txn, "single", "value"); err != nil {
		return err
	}
	if !(transaction.TxnProbe{KVTxn: txn}).GetCommitter().IsOnePC() {
		return errors.New("it fell back to two phases")
	}
	return expect(ctx, client, "single", "value")
}

func rowKey(i int) []byte { return []byte(fmt.Sprintf("row%04d", i)) }

const rows = 1000

func splitAndScan(ctx context.Context, client *txnkv.Client) error {
	regions, err := client.SplitRegions(ctx, [][]byte{rowKey(100), rowKey(500), rowKey(501), rowKey(900)}, true, nil)
	if err != nil {
		return err
	}
	for _, id := range regions {
		if err := client.WaitScatterRegionFinish(ctx, id, 5000); err != nil {
			return err
		}
	}
	txn := must(client)
	for i := 0; i < rows; i++ {
		if err := txn.Set(rowKey(i), rowKey(i)); err != nil {
			return err
		}
	}
	if err := txn.Commit(ctx); err != nil {
		return err
	}
	forward, err := must(client).Iter([]byte("row"), []byte("rox"))
	if err != nil {
		return err
	}
	seen := 0
	for ; forward.Valid(); seen++ {
		if !bytes.Equal(forward.Key(), rowKey(seen)) || !bytes.Equal(forward.Value(), rowKey(seen)) {
			return fmt.Errorf("row %d is %q", seen, forward.Key())
		}
		if err := forward.Next(); err != nil {
			return err
		}
	}
	backward, err := must(client).IterReverse([]byte("rox"))
	if err != nil {
		return err
	}
	for i := rows - 1; i >= 0; i-- {
		if !backward.Valid() || !bytes.Equal(backward.Key(), rowKey(i)) {
			return fmt.Errorf("backwards row %d is missing", i)
		}
		if err := backward.Next(); err != nil {
			return err
		}
	}
	if seen != rows {
		return fmt.Errorf("%d rows, want %d", seen, rows)
	}
	return nil
}

func batchGet(ctx context.Context, client *txnkv.Client) error {
	keys := [][]byte{[]byte("absent")}
	for i := 0; i < rows; i += 7 {
		keys = append(keys, rowKey(i))
	}
	found, err := must(client).BatchGet(ctx, keys)
	if err != nil {
		return err
	}
	if len(found) != len(keys)-1 {
		return fmt.Errorf("%d keys, want %d", len(found), len(keys)-1)
	}
	return nil
}

func replicaRead(ctx context.Context, client *txnkv.Client) error {
	ts, err := client.CurrentTimestamp("global")
	if err != nil {
		return err
	}
	snapshot := client.GetSnapshot(ts)
	snapshot.SetReplicaRead(kv.ReplicaReadFollower)
	value, err := snapshot.Get(ctx, rowKey(500))
	if err != nil {
		return err
	}
	if !bytes.Equal(value, rowKey(500)) {
		return fmt.Errorf("a follower read %q", value)
	}
	return nil
}

func deadlock(ctx context.Context, client *txnkv.Client) error {
	left, right := begin(client), begin(client)
	if err := lock(ctx, left, client, kv.LockAlwaysWait, "dead-a"); err != nil {
		return err
	}
	if err := lock(ctx, right, client, kv.LockAlwaysWait, "dead-b"); err != nil {
		return err
	}
	outcomes := make(chan error, 2)
	crossed := func(txn *transaction.KVTxn, key string) {
		err := lock(ctx, txn, client, kv.LockAlwaysWait, key)
		if err != nil {
			_ = txn.Rollback()
		}
		outcomes <- err
	}
	go crossed(left, "dead-b")
	go crossed(right, "dead-a")
	victims := 0
	for i := 0; i < 2; i++ {
		err := <-outcomes
		var found *tikverr.ErrDeadlock
		if errors.As(err, &found) {
			victims++
		} else if err != nil {
			return err
		}
	}
	if victims != 1 {
		return fmt.Errorf("%d victims of a deadlock, want 1", victims)
	}
	_ = left.Rollback()
	_ = right.Rollback()
	return nil
}

func abandonedLocks(ctx context.Context, client *txnkv.Client) error {
	txn := must(client)
	for _, key := range []string{"left-behind-1", "left-behind-2"} {
		if err := txn.Set([]byte(key), []byte("never committed")); err != nil {
			return err
		}
	}
	committer, err := transaction.TxnProbe{KVTxn: txn}.NewCommitter(1)
	if err != nil {
		return err
	}
	committer.SetLockTTL(100)
	if err := committer.PrewriteAllMutations(ctx); err != nil {
		return err
	}
	if _, err := must(client).Get(ctx, []byte("left-behind-2")); !tikverr.IsErrNotFound(err) {
		return fmt.Errorf("a lock nobody holds was not resolved: %v", err)
	}
	return put(ctx, must(client), "left-behind-1", "taken over")
}

func largeTransaction(ctx context.Context, client *txnkv.Client) error {
	txn := must(client)
	value := bytes.Repeat([]byte("x"), 64*1024)
	for i := 0; i < 100; i++ {
		if err := txn.Set([]byte(fmt.Sprintf("large%03d", i)), value); err != nil {
			return err
		}
	}
	if err := txn.Commit(ctx); err != nil {
		return err
	}
	got, err := must(client).Get(ctx, []byte("large099"))
	if err != nil || !bytes.Equal(got, value) {
		return fmt.Errorf("a large value came back with %d bytes: %v", len(got), err)
	}
	return nil
}

func raw(ctx context.Context, pdAddr string) error {
	client, err := rawkv.NewClientWithOpts(ctx, []string{pdAddr})
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.BatchPut(ctx, [][]byte{[]byte("r1"), []byte("r2")}, [][]byte{[]byte("1"), []byte("2")}); err != nil {
		return err
	}
	client.SetAtomicForCAS(true)
	old, swapped, err := client.CompareAndSwap(ctx, []byte("r1"), []byte("1"), []byte("one"))
	if err != nil || !swapped || string(old) != "1" {
		return fmt.Errorf("swapped %v from %q: %v", swapped, old, err)
	}
	keys, _, err := client.Scan(ctx, []byte("r1"), []byte("r3"), 10)
	if err != nil || len(keys) != 2 {
		return fmt.Errorf("scan found %d keys: %v", len(keys), err)
	}
	return client.DeleteRange(ctx, []byte("r1"), []byte("r3"))
}
