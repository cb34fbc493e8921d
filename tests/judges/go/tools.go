//go:build tools

package judges

import _ "github.com/pingcap/tiflow/cmd/storage-consumer"
