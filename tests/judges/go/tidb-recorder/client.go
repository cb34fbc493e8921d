package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"sync"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
)

type mutation struct {
	Op    string `json:"op"`
	Key   string `json:"key"`
	Value string `json:"value"`
}

// transaction is a line of txns.jsonl. TxnSource is what TiKV's change streams filter by: TiDB marks the
// transactions of a backfill there.
type transaction struct {
	StartTS   uint64     `json:"start_ts"`
	CommitTS  uint64     `json:"commit_ts"`
	Statement int        `json:"stmt"`
	TxnSource uint64     `json:"txn_source,omitempty"`
	Mutations []mutation `json:"muts"`

	primary []byte
	places  map[string]int // of a key among the mutations: a prewrite can come twice
}

// recordingClient passes requests on and writes every transaction to the output once its primary key is committed.
type recordingClient struct {
	tikv.Client
	output *output

	mutex        sync.Mutex
	transactions map[uint64]*transaction
	// commits is held over a commit and its line, so that who reads the commit cannot commit a line before it.
	commits sync.Mutex
}

func (c *recordingClient) SendRequest(
	ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration,
) (*tikvrpc.Response, error) {
	switch req.Type {
	case tikvrpc.CmdPrewrite:
		// Without these, prewrite and commit are all there is; the client goes on with two phases by itself.
		req.Prewrite().TryOnePc = false
		req.Prewrite().UseAsyncCommit = false
		resp, err := c.Client.SendRequest(ctx, addr, req, timeout)
		if err == nil && succeeded(resp) {
			c.prewritten(req)
		}
		return resp, err
	case tikvrpc.CmdCommit:
		c.commits.Lock()
		defer c.commits.Unlock()
		resp, err := c.Client.SendRequest(ctx, addr, req, timeout)
		if err == nil && succeeded(resp) {
			c.committed(req.Commit())
		}
		return resp, err
	default:
		return c.Client.SendRequest(ctx, addr, req, timeout)
	}
}

func succeeded(resp *tikvrpc.Response) bool {
	regionError, err := resp.GetRegionError()
	if err != nil || regionError != nil {
		return false
	}
	switch body := resp.Resp.(type) {
	case *kvrpcpb.PrewriteResponse:
		return len(body.Errors) == 0
	case *kvrpcpb.CommitResponse:
		return body.Error == nil
	}
	return false
}

func (c *recordingClient) prewritten(req *tikvrpc.Request) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	body := req.Prewrite()
	txn, ok := c.transactions[body.StartVersion]
	if !ok {
		txn = &transaction{StartTS: body.StartVersion, primary: body.PrimaryLock, places: map[string]int{}}
		c.transactions[body.StartVersion] = txn
	}
	txn.TxnSource = req.TxnSource
	for _, written := range body.Mutations {
		op, ok := map[kvrpcpb.Op]string{
			kvrpcpb.Op_Put: "put", kvrpcpb.Op_Insert: "put", kvrpcpb.Op_Del: "del", kvrpcpb.Op_Lock: "lock",
		}[written.Op]
		if !ok {
			continue // CheckNotExists leaves nothing behind
		}
		recorded := mutation{Op: op, Key: hex.EncodeToString(written.Key), Value: hex.EncodeToString(written.Value)}
		if place, again := txn.places[recorded.Key]; again {
			txn.Mutations[place] = recorded
			continue
		}
		txn.places[recorded.Key] = len(txn.Mutations)
		txn.Mutations = append(txn.Mutations, recorded)
	}
}

func (c *recordingClient) committed(body *kvrpcpb.CommitRequest) {
	c.mutex.Lock()
	txn, ok := c.transactions[body.StartVersion]
	first := ok && contains(body.Keys, txn.primary)
	if first {
		delete(c.transactions, body.StartVersion) // what commits after the primary key adds nothing
	}
	c.mutex.Unlock()
	if first {
		txn.CommitTS = body.CommitVersion
		txn.Statement = c.output.current()
		c.output.add("txn", txn)
	}
}

func contains(keys [][]byte, wanted []byte) bool {
	for _, key := range keys {
		if bytes.Equal(key, wanted) {
			return true
		}
	}
	return false
}
