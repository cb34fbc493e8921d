"""Every metric of Penstock, declared once with its help text.

Metrics of the design documents change only their prefix: `tidb_tikvclient_x` is `penstock_kv_x`, and
`ticdc_x` is `penstock_x`.
"""

import threading

from prometheus_client import Counter, Gauge, Histogram, Metric

__all__ = [
    "JOBS_ADOPTED_TOTAL",
    "JOBS_COLLECTED_TOTAL",
    "JOBS_DIFFERENCES",
    "JOBS_FLUSHED_WATERMARKS_TOTAL",
    "JOBS_INDEX_UPKEEP_SECONDS",
    "JOBS_JOBS",
    "JOBS_LOG_REPLAYS_TOTAL",
    "JOBS_LOOK_FAILURES_TOTAL",
    "JOBS_RAISED_WATERMARKS_TOTAL",
    "JOBS_REFUSED_ITERATIONS_TOTAL",
    "JOBS_RUNNER",
    "JOBS_SUBMITTED_TOTAL",
    "JOBS_TAKEOVERS_TOTAL",
    "JOBS_TICK_SECONDS",
    "JOBS_TRIGGER_FAULTS_TOTAL",
    "JOBS_VERIFICATIONS_TOTAL",
    "JOBS_VERIFY_SECONDS",
    "JOBS_WATERMARK_LAG_SECONDS",
    "SINK_CHECKPOINT_LAG_SECONDS",
    "SINK_DDL_AFFECTED_DISPATCHERS",
    "SINK_DISPATCHERS",
    "SINK_READING_DISPATCHERS",
    "CountedHistogram",
    "exponential",
]


def exponential(start: float, factor: float, count: int) -> tuple[float, ...]:
    """Return `count` bucket bounds, each `factor` times the one before."""
    return tuple(start * factor**i for i in range(count))


class CountedHistogram(Histogram):
    """A histogram that takes many observations of zero at the cost of one, for hot paths. Thread-safe."""

    _zeros = 0
    _adding = threading.Lock()

    def observe_zeros(self, count: int) -> None:
        """Observe zero `count` times."""
        with self._adding:
            self._zeros += count

    def collect(self) -> list[Metric]:
        """Return all observations. One of zero is in every bucket and adds nothing to the sum."""
        families = list(super().collect())
        for family in families:
            family.samples = [
                sample._replace(value=sample.value + self._zeros)
                if sample.name.endswith(("_bucket", "_count"))
                else sample
                for sample in family.samples
            ]
        return families


_SECONDS = exponential(0.0005, 2, 20)
_NANOSECONDS = exponential(1_000, 4, 17)
_SIZES = exponential(1, 2, 11)

# The client: transactions.
KV_TS_FUTURE_WAIT_SECONDS = Histogram(
    "penstock_kv_ts_future_wait_seconds",
    "Seconds that a transaction waited for its start timestamp.",
    buckets=exponential(0.000005, 2, 24),
)
KV_TXN_CMD_DURATION_SECONDS = Histogram(
    "penstock_kv_txn_cmd_duration_seconds",
    "Seconds of one command of a transaction: commit, rollback, get, batch_get, lock_keys.",
    ["type", "scope"],
    buckets=_SECONDS,
)
KV_LOCAL_LATCH_WAIT_SECONDS = Histogram(
    "penstock_kv_local_latch_wait_seconds",
    "Seconds that an optimistic commit waited for local latches.",
    buckets=_SECONDS,
)
KV_BATCH_EXECUTOR_TOKEN_WAIT_DURATION = Histogram(
    "penstock_kv_batch_executor_token_wait_duration",
    "Nanoseconds that a batch of mutations waited for a rate-limit token.",
    buckets=_NANOSECONDS,
)
KV_TXN_REGIONS_NUM = Histogram(
    "penstock_kv_txn_regions_num",
    "Regions that one action of a transaction touched.",
    ["type", "scope"],
    buckets=_SIZES,
)
KV_TXN_WRITE_KV_NUM = Histogram(
    "penstock_kv_txn_write_kv_num", "Mutations of one transaction.", ["scope"], buckets=exponential(1, 4, 12)
)
KV_TXN_WRITE_SIZE_BYTES = Histogram(
    "penstock_kv_txn_write_size_bytes",
    "Bytes of keys and values that one transaction wrote.",
    ["scope"],
    buckets=exponential(16, 4, 14),
)
KV_COMMIT_TXN_COUNTER = Counter("penstock_kv_commit_txn_counter", "Two-phase commits, by result.", ["type"])
KV_ASYNC_COMMIT_TXN_COUNTER = Counter(
    "penstock_kv_async_commit_txn_counter", "Async commits, by result.", ["type"]
)
KV_ONE_PC_TXN_COUNTER = Counter("penstock_kv_one_pc_txn_counter", "One-phase commits, by result.", ["type"])
KV_TXN_HEART_BEAT = Histogram(
    "penstock_kv_txn_heart_beat", "Seconds of one heart beat of a primary lock.", ["type"], buckets=_SECONDS
)
KV_TTL_LIFETIME_REACH_TOTAL = Counter(
    "penstock_kv_ttl_lifetime_reach_total",
    "Transactions that became too old to refresh their locks.",
)
KV_LOCK_RESOLVER_ACTIONS_TOTAL = Counter(
    "penstock_kv_lock_resolver_actions_total", "Steps taken to resolve locks of other transactions.", ["type"]
)
KV_BACKOFF_SECONDS = Histogram(
    "penstock_kv_backoff_seconds", "Seconds of sleep before a retry, by reason.", ["type"], buckets=_SECONDS
)

# The client: regions and RPC.
KV_REQUEST_SECONDS = Histogram(
    "penstock_kv_request_seconds",
    "Seconds of one request to a store.",
    ["type", "store"],
    buckets=_SECONDS,
)
KV_REGION_ERR_TOTAL = Counter(
    "penstock_kv_region_err_total", "Region errors in the answers of stores.", ["type"]
)
KV_RPC_ERR_TOTAL = Counter(
    "penstock_kv_rpc_err_total", "Requests without an answer, by gRPC status.", ["type", "store"]
)
KV_REGION_CACHE_OPERATIONS_TOTAL = Counter(
    "penstock_kv_region_cache_operations_total", "Operations on the region cache.", ["type", "result"]
)
KV_LOAD_REGION_CACHE_SECONDS = Histogram(
    "penstock_kv_load_region_cache_seconds",
    "Seconds to load regions from the placement driver.",
    ["type"],
    buckets=_SECONDS,
)
KV_STORE_LIVENESS_STATE = Gauge(
    "penstock_kv_store_liveness_state",
    "Whether a store is reachable: 0 reachable, 1 unreachable, 2 unknown.",
    ["store"],
)
KV_BATCH_WAIT_DURATION = Histogram(
    "penstock_kv_batch_wait_duration",
    "Nanoseconds to put a request into the batch channel.",
    buckets=_NANOSECONDS,
)
KV_BATCH_SEND_LATENCY = Histogram(
    "penstock_kv_batch_send_latency",
    "Nanoseconds of one iteration of the batch send loop, without the wait for its first request.",
    buckets=_NANOSECONDS,
)
KV_BATCH_RECV_LATENCY = Histogram(
    "penstock_kv_batch_recv_latency",
    "Nanoseconds that the batch receive loop waited for a message, by result.",
    ["result"],
    buckets=_NANOSECONDS,
)
KV_BATCH_WAIT_OVERLOAD = Counter(
    "penstock_kv_batch_wait_overload",
    "Times that the send loop waited for more requests because a store was overloaded.",
)
KV_BATCH_PENDING_REQUESTS = Histogram(
    "penstock_kv_batch_pending_requests",
    "Requests in the batch channel when the send loop read it.",
    ["store"],
    buckets=_SIZES,
)
KV_BATCH_REQUESTS = Histogram(
    "penstock_kv_batch_requests", "Requests in one batch message.", ["store"], buckets=_SIZES
)
KV_BATCH_CLIENT_NO_AVAILABLE_CONNECTION_TOTAL = Counter(
    "penstock_kv_batch_client_no_available_connection_total",
    "Batches for which every connection of a store was being re-created.",
)
KV_BATCH_CLIENT_RESET = Histogram(
    "penstock_kv_batch_client_reset", "Seconds to re-create a batch stream after an error.", buckets=_SECONDS
)

# The embedded store: storage.
STORE_ENGINE_WRITE_SECONDS = Histogram(
    "penstock_store_engine_write_seconds",
    "Seconds to make one group of writes durable.",
    buckets=exponential(0.00005, 2, 20),
)
STORE_ENGINE_GROUP_WRITES = Histogram(
    "penstock_store_engine_group_writes", "Writes in one durable group.", buckets=_SIZES
)
STORE_LATCH_WAIT_SECONDS = Histogram(
    "penstock_store_latch_wait_seconds",
    "Seconds that a write command waited for the latches of its keys.",
    buckets=exponential(0.00005, 2, 20),
)
STORE_LOCK_WAIT_SECONDS = Histogram(
    "penstock_store_lock_wait_seconds",
    "Seconds that a pessimistic lock request waited for another transaction's lock, by outcome.",
    ["outcome"],
    buckets=_SECONDS,
)
STORE_DEADLOCKS_TOTAL = Counter(
    "penstock_store_deadlocks_total", "Pessimistic lock requests that closed a cycle and were refused."
)

# The embedded store: change streams.
STORE_GC_ROUNDS_TOTAL = Counter(
    "penstock_store_gc_rounds_total", "Rounds of garbage collection, by result: ok, failed.", ["result"]
)
STORE_GC_SECONDS = Histogram(
    "penstock_store_gc_seconds",
    "Seconds of one round of garbage collection.",
    buckets=exponential(0.01, 2, 20),
)
STORE_GC_SAFE_POINT_SECONDS = Gauge(
    "penstock_store_gc_safe_point_seconds",
    "Wall time, in seconds since the epoch, before which the store has collected old versions.",
)
STORE_GC_COLLECTED_VERSIONS_TOTAL = Counter(
    "penstock_store_gc_collected_versions_total", "Old versions that garbage collection removed."
)
STORE_GC_DELETED_RANGES_TOTAL = Counter(
    "penstock_store_gc_deleted_ranges_total", "Ranges of dropped tables, partitions and indexes deleted."
)
STORE_CDC_SUBSCRIPTIONS = Gauge("penstock_store_cdc_subscriptions", "Region subscriptions of all streams.")
STORE_CDC_PENDING_BYTES = Gauge(
    "penstock_store_cdc_pending_bytes", "Bytes of changes that wait to be sent, of all streams."
)
STORE_CDC_ROWS_TOTAL = Counter("penstock_store_cdc_rows_total", "Rows of live changes sent to subscriptions.")
STORE_CDC_SCAN_SECONDS = Histogram(
    "penstock_store_cdc_scan_seconds", "Seconds of one incremental scan.", buckets=_SECONDS
)
STORE_CDC_CONGESTED_TOTAL = Counter(
    "penstock_store_cdc_congested_total",
    "Streams whose subscriptions ended because the client was too slow.",
)

# The puller: from change streams to the event store.
SPAN_PIPELINE_INFLIGHT_BYTES = Gauge(
    "penstock_log_puller_span_pipeline_inflight_bytes",
    "Approximate bytes of the batches that hold quota of the pipeline.",
)
SPAN_PIPELINE_INFLIGHT_BATCHES = Gauge(
    "penstock_log_puller_span_pipeline_inflight_batches",
    "Data batches that hold quota and wait to be persisted.",
)
SPAN_PIPELINE_PENDING_RESOLVED_BARRIERS = Gauge(
    "penstock_log_puller_span_pipeline_pending_resolved_barriers",
    "Resolved timestamps that wait until the data before them is persisted.",
)
SPAN_PIPELINE_ACTIVE_SUBSCRIPTIONS = Gauge(
    "penstock_log_puller_span_pipeline_active_subscriptions", "Subscriptions in the pipeline."
)
SPAN_PIPELINE_QUOTA_ACQUIRE_DURATION_SECONDS = CountedHistogram(
    "penstock_log_puller_span_pipeline_quota_acquire_duration_seconds",
    "Seconds that a data batch waited for quota.",
    buckets=exponential(0.00004, 2, 28),
)
SPAN_PIPELINE_RESOLVED_BARRIER_DROPPED_TOTAL = Counter(
    "penstock_log_puller_span_pipeline_resolved_barrier_dropped_total",
    "Resolved timestamps that were obsolete on arrival, or joined one that waited for the same data.",
)
SPAN_PIPELINE_RESOLVED_BARRIER_COMPACTION_TOTAL = Counter(
    "penstock_log_puller_span_pipeline_resolved_barrier_compaction_total",
    "Compactions of the list of pending resolved timestamps.",
)
PULLER_SPILLED_BYTES_TOTAL = Counter(
    "penstock_log_puller_prewrite_spilled_bytes_total",
    "Bytes of prewrites moved to disk because they did not fit into memory.",
)
PULLER_EVENTS_TOTAL = Counter(
    "penstock_kvclient_pull_event_count", "Rows received from change streams, by kind.", ["type"]
)
PULLER_FEED_ERRORS_TOTAL = Counter(
    "penstock_kvclient_event_feed_error_count", "Ends of regions' change streams, by reason.", ["type"]
)
PULLER_REGIONS = Gauge(
    "penstock_subscription_client_subscribed_region_count",
    "Regions of all subscriptions by state: asked (their scan has not ended), initialized.",
    ["state"],
)
PULLER_RESOLVED_TS_LAG = Gauge(
    "penstock_subscription_client_resolved_ts_lag",
    "Seconds by which the resolved timestamp of the slowest subscription lags.",
)
PULLER_RESOLVE_LOCK_TOTAL = Counter(
    "penstock_subscription_client_resolve_lock_count",
    "Tasks to resolve the locks that hold back a region's resolved timestamp.",
)
PULLER_RESOLVE_LOCK_DROPPED_TOTAL = Counter(
    "penstock_subscription_client_resolve_lock_task_drop_count",
    "Tasks to resolve locks that were dropped because too many waited.",
)

# The event store.
FLIGHT_REFUSED_TOTAL = Counter(
    "penstock_eventstore_flight_refused_total",
    "Flight calls that a capture refused or ended: token, calls (too many at a time), slow.",
    ["why"],
)
EVENTSTORE_WAL_WRITE_SECONDS = Histogram(
    "penstock_eventstore_wal_write_seconds",
    "Seconds to write and sync one group of the log.",
    buckets=_SECONDS,
)
EVENTSTORE_WAL_GROUP_BYTES = Histogram(
    "penstock_eventstore_wal_group_bytes",
    "Bytes of raw batches in one group of the log.",
    buckets=exponential(256, 4, 10),
)
EVENTSTORE_WAL_BYTES = Gauge("penstock_eventstore_wal_bytes", "Bytes of the log on the local disk.")
EVENTSTORE_ROWS_TOTAL = Counter(
    "penstock_eventstore_rows_total",
    "Rows received by outcome: stored, late (resolved before), disowned (a newer owner has the table).",
    ["outcome"],
)
EVENTSTORE_MEMORY_BYTES = Gauge("penstock_eventstore_memory_bytes", "Bytes of unflushed rows in memory.")
EVENTSTORE_SPILLED_BYTES_TOTAL = Counter(
    "penstock_eventstore_spilled_bytes_total",
    "Bytes of unflushed rows that only the log holds because memory was full.",
)
EVENTSTORE_FLUSH_SECONDS = Histogram(
    "penstock_eventstore_flush_seconds", "Seconds of one table's flush.", buckets=_SECONDS
)
EVENTSTORE_FLUSHED_ROWS_TOTAL = Counter(
    "penstock_eventstore_flushed_rows_total", "Rows written to objects, by side.", ["side"]
)
EVENTSTORE_FLUSH_FAILURES_TOTAL = Counter(
    "penstock_eventstore_flush_failures_total", "Failed flushes, by reason.", ["reason"]
)
EVENTSTORE_UNKNOWN_ROWS_TOTAL = Counter(
    "penstock_eventstore_unknown_rows_total", "Flushed tombstones of rows that were never captured."
)
EVENTSTORE_INDEX_BUILDS_TOTAL = Counter(
    "penstock_eventstore_index_builds_total", "Primary-key indexes built from the objects of a table."
)
EVENTSTORE_INDEX_SECONDS = Histogram(
    "penstock_eventstore_index_seconds", "Seconds of one update of a primary-key index.", buckets=_SECONDS
)
EVENTSTORE_MERGES_TOTAL = Counter(
    "penstock_eventstore_merges_total",
    "Written merges by outcome: committed, overtaken (an input was gone by then).",
    ["outcome"],
)
EVENTSTORE_MERGE_SECONDS = Histogram(
    "penstock_eventstore_merge_seconds", "Seconds to plan, write and commit one merge.", buckets=_SECONDS
)
EVENTSTORE_MERGED_BYTES_TOTAL = Counter(
    "penstock_eventstore_merged_bytes_total",
    "Bytes of the objects that merges read and wrote.",
    ["direction"],
)
EVENTSTORE_TRANSFERRED_ROWS_TOTAL = Counter(
    "penstock_eventstore_transferred_rows_total",
    "Tombstones that were committed during a merge and moved to its objects.",
)
EVENTSTORE_ARCHIVED_OBJECTS_TOTAL = Counter(
    "penstock_eventstore_archived_objects_total", "Replaced objects that were kept as history."
)
EVENTSTORE_COLLECTED_FILES_TOTAL = Counter(
    "penstock_eventstore_collected_files_total",
    "Deleted files by kind: history, manifest, watermark, orphan (left by a crash).",
    ["what"],
)
EVENTSTORE_UPKEEP_FAILURES_TOTAL = Counter(
    "penstock_eventstore_upkeep_failures_total",
    "Failed merges, collections and sweeps, by reason.",
    ["duty", "reason"],
)
EVENTSTORE_RESOLVED_LAG_SECONDS = Gauge(
    "penstock_eventstore_resolved_lag_seconds",
    "Seconds by which the resolved timestamp of the slowest table lags behind the clock.",
)

# Changes.
CHANGES_BATCHES_TOTAL = Counter(
    "penstock_changes_batches_total", "Batches of changes that readers received, by hint.", ["hint"]
)
CHANGES_ROWS_TOTAL = Counter(
    "penstock_changes_rows_total", "Rows of changes that readers received, by side.", ["side"]
)
CHANGES_COALESCED_ROWS_TOTAL = Counter(
    "penstock_changes_coalesced_rows_total",
    "Rows of changes that cancelled each other out or were combined into one.",
)
CHANGES_HIDDEN_DATES_TOTAL = Counter(
    "penstock_changes_hidden_dates_total",
    "Batches of changes whose readers got NULL for dates that no calendar has, such as 0000-00-00.",
)

# The sink of changefeeds. The label `reason` is a FlushReason of penstock.changefeeds.sinks.storage.buffers.
SINK_HELD_BYTES = Gauge(
    "penstock_sink_held_bytes",
    "Bytes of history that an account's changefeeds hold back, for accounts with bytes_held_max.",
    ["account"],
)
SINK_ABANDONED_CHANGEFEEDS = Gauge(
    "penstock_sink_abandoned_changefeeds",
    "Runs of changefeeds that were ended and of which a call of the target has not returned.",
)
SINK_CHECKPOINT_LAG_SECONDS = Gauge(
    "penstock_sink_checkpoint_lag_seconds",
    "Seconds by which the checkpoint of a changefeed lags behind the clock.",
    ["changefeed"],
)
SINK_DISPATCHERS = Gauge("penstock_sink_dispatchers", "Dispatchers of a changefeed.", ["changefeed"])
SINK_READING_DISPATCHERS = Gauge(
    "penstock_sink_reading_dispatchers", "Dispatchers with changes or a DDL to process.", ["changefeed"]
)
SINK_SPOOL_BYTES = Gauge(
    "penstock_sink_spool_bytes", "Encoded bytes that are not on the remote yet.", ["changefeed"]
)
SINK_SPOOL_ITEMS = Gauge(
    "penstock_sink_spool_items", "Encoded chunks that are not on the remote yet.", ["changefeed"]
)
SINK_SPOOL_RETAINED_BYTES = Gauge(
    "penstock_sink_spool_retained_bytes",
    "Bytes of all segments of the spool, also of those that are only partly waiting for the remote.",
    ["changefeed"],
)
SINK_SPOOL_MARK_BYTES = Gauge(
    "penstock_sink_spool_mark_bytes",
    "Marks of the spool: quota; high, above which reading stops; low, below which it continues.",
    ["changefeed", "mark"],
)
SINK_WAKE_CALLS_TOTAL = Counter(
    "penstock_sink_wake_calls_total", "Events after which their dispatcher continued.", ["changefeed"]
)
SINK_WAKE_SUPPRESSED_TOTAL = Counter(
    "penstock_sink_wake_suppressed_total",
    "Events whose dispatcher had to wait until the spool was emptier.",
    ["changefeed"],
)
SINK_QUEUED_ITEMS = Gauge(
    "penstock_sink_queued_items", "Events and markers that wait to be encoded.", ["changefeed"]
)
SINK_ACTIVE_DISPATCHERS = Gauge(
    "penstock_sink_active_dispatchers", "Dispatchers with something in the spool.", ["changefeed"]
)
SINK_OLDEST_UNFLUSHED_AGE_SECONDS = Gauge(
    "penstock_sink_oldest_unflushed_age_seconds",
    "Age in seconds of the oldest event that is not on the remote yet; updated every second.",
    ["changefeed"],
)
SINK_ENCODE_DURATION_SECONDS = Histogram(
    "penstock_sink_encode_duration_seconds", "Seconds of one encode job.", ["changefeed"], buckets=_SECONDS
)
SINK_FLUSH_COUNT = Counter(
    "penstock_sink_flush_count",
    "Files by the reason to close them: size, interval, ddl, quota, close; error: the write failed.",
    ["changefeed", "reason"],
)
SINK_FLUSH_DURATION_SECONDS = Histogram(
    "penstock_sink_flush_duration_seconds",
    "Seconds from closing a file until its data and index were on the remote.",
    ["changefeed", "reason"],
    buckets=_SECONDS,
)
SINK_FLUSH_FILE_SIZE_BYTES = Histogram(
    "penstock_sink_flush_file_size_bytes",
    "Bytes of one data file.",
    ["changefeed"],
    buckets=exponential(1024, 2, 20),
)
SINK_FILES_TOTAL = Counter("penstock_sink_files_total", "Data files on the remote.", ["changefeed"])
SINK_ROWS_TOTAL = Counter("penstock_sink_rows_total", "Rows in data files on the remote.", ["changefeed"])
SINK_BYTES_TOTAL = Counter("penstock_sink_bytes_total", "Bytes of data files on the remote.", ["changefeed"])
SINK_STALE_ROWS_TOTAL = Counter(
    "penstock_sink_stale_rows_total",
    "Rows that were skipped because the remote already has a newer version of their table.",
    ["changefeed"],
)
SINK_DDL_DRAIN_DURATION_SECONDS = Histogram(
    "penstock_sink_ddl_drain_duration_seconds",
    "Seconds until a dispatcher's changes before a DDL were on the remote.",
    ["changefeed"],
    buckets=_SECONDS,
)
SINK_DDL_DRAIN_WAIT_ENCODE_SECONDS = Histogram(
    "penstock_sink_ddl_drain_wait_encode_seconds",
    "Part of the DDL drain: seconds until the changes were in the spool.",
    ["changefeed"],
    buckets=_SECONDS,
)
SINK_DDL_DRAIN_WAIT_REMOTE_SECONDS = Histogram(
    "penstock_sink_ddl_drain_wait_remote_seconds",
    "Part of the DDL drain: seconds from the spool to the remote.",
    ["changefeed"],
    buckets=_SECONDS,
)
SINK_DDL_AFFECTED_DISPATCHERS = Histogram(
    "penstock_sink_ddl_affected_dispatchers",
    "Dispatchers that one DDL blocked.",
    ["changefeed"],
    buckets=_SIZES,
)
SINK_ERRORS_TOTAL = Counter(
    "penstock_sink_errors_total",
    "Failures by stage: encode, place, begin, write, release, ddl, checkpoint, sweep.",
    ["changefeed", "stage"],
)

# Traces.
TRACING_SPANS_TOTAL = Counter(
    "penstock_tracing_spans_total",
    "Spans by outcome: sent, dropped (there were too many), failed (the endpoint did not accept them).",
    ["outcome"],
)

# Jobs: the runner.
JOBS_RUNNER = Gauge("penstock_jobs_runner", "1 while this process runs the jobs, else 0.")
JOBS_TAKEOVERS_TOTAL = Counter("penstock_jobs_takeovers_total", "Times that this process took over the jobs.")
JOBS_JOBS = Gauge("penstock_jobs_jobs", "Jobs by the state of their last iteration, or paused.", ["state"])
JOBS_WATERMARK_LAG_SECONDS = Gauge(
    "penstock_jobs_watermark_lag_seconds",
    "Seconds by which a job's watermark lags behind the time of the database.",
    ["job"],
)
JOBS_TICK_SECONDS = Histogram(
    "penstock_jobs_tick_seconds",
    "Seconds of one check for jobs that are due: full (all tables) or part (those that cannot wait).",
    ["scope"],
    buckets=_SECONDS,
)
JOBS_SUBMITTED_TOTAL = Counter(
    "penstock_jobs_submitted_total",
    "Iterations submitted to the scheduler, by rule: first, shared, lagging, own.",
    ["rule"],
)
JOBS_REFUSED_ITERATIONS_TOTAL = Counter(
    "penstock_jobs_refused_iterations_total", "Iterations that did not fit into the scheduler's queue."
)
JOBS_RAISED_WATERMARKS_TOTAL = Counter(
    "penstock_jobs_raised_watermarks_total", "Watermarks raised in memory because the table had no changes."
)
JOBS_LOOK_FAILURES_TOTAL = Counter(
    "penstock_jobs_look_failures_total",
    "Failed reads of the progress of tables. Their jobs had to wait.",
)
JOBS_TRIGGER_FAULTS_TOTAL = Counter(
    "penstock_jobs_trigger_faults_total", "Calls of custom triggers that gave no answer."
)
JOBS_ADOPTED_TOTAL = Counter(
    "penstock_jobs_adopted_total", "Rows of the log that this runner took over from another one."
)
JOBS_LOG_REPLAYS_TOTAL = Counter(
    "penstock_jobs_log_replays_total", "Times that the whole log was read again because history was gone."
)
JOBS_FLUSHED_WATERMARKS_TOTAL = Counter(
    "penstock_jobs_flushed_watermarks_total",
    "Watermarks that had moved only in memory and were written to the log.",
)
JOBS_COLLECTED_TOTAL = Counter(
    "penstock_jobs_collected_total", "Rows of dropped jobs that were removed from the log."
)

# Jobs: the scheduler and its iterations.
JOBS_VERIFICATIONS_TOTAL = Counter(
    "penstock_jobs_verifications_total",
    "Scheduled comparisons of a target with its source, by result: same, differs, failed.",
    ["result"],
)
JOBS_VERIFY_SECONDS = Histogram(
    "penstock_jobs_verify_seconds",
    "Seconds of one comparison of a target with its source.",
    buckets=exponential(0.01, 2, 20),
)
JOBS_DIFFERENCES = Gauge(
    "penstock_jobs_differences", "Wrong rows that the last comparison found in a target.", ["job"]
)
JOBS_QUEUED_ITERATIONS = Gauge(
    "penstock_jobs_queued_iterations", "Iterations that wait for a worker or for their next try."
)
JOBS_RUNNING_ITERATIONS = Gauge("penstock_jobs_running_iterations", "Iterations that run now.")
JOBS_QUEUE_WAIT_SECONDS = Histogram(
    "penstock_jobs_queue_wait_seconds",
    "Seconds that an iteration waited for a worker, from its submission or from the time of its next try.",
    buckets=_SECONDS,
)
JOBS_ITERATION_SECONDS = Histogram(
    "penstock_jobs_iteration_seconds",
    "Seconds of one try of an iteration.",
    buckets=exponential(0.002, 2, 24),
)
JOBS_ENDINGS_TOTAL = Counter(
    "penstock_jobs_endings_total",
    "Ended tries by outcome: completed, followed (the target was further ahead), canceled, fenced, resynced,"
    " retried, failed, permanent.",
    ["how"],
)
JOBS_SCANS_TOTAL = Counter(
    "penstock_jobs_scans_total",
    "Reads of a table's changes by kind: batches (in this process), frame (on executors).",
    ["kind"],
)
JOBS_DETACHED_TOTAL = Counter(
    "penstock_jobs_detached_total", "Slow consumers that now continue alone, from disk."
)
JOBS_CUT_OFF_TOTAL = Counter(
    "penstock_jobs_cut_off_total",
    "Slow consumers that needed more disk than allowed and catch up in their own iteration.",
)
JOBS_SPOOL_BYTES = Gauge("penstock_jobs_spool_bytes", "Bytes of changes on disk for slow consumers.")
JOBS_HELD_BYTES = Gauge(
    "penstock_jobs_held_bytes",
    "Bytes of history that an account's jobs hold back, for accounts with bytes_held_max.",
    ["account"],
)
JOBS_ABANDONED_CONSUMERS = Gauge(
    "penstock_jobs_abandoned_consumers", "Consumers that were canceled and have not stopped."
)
JOBS_STALLED_TOTAL = Counter(
    "penstock_jobs_stalled_total", "Consumers that were ended because they made no progress."
)
JOBS_INDEX_UPKEEP_SECONDS = Histogram(
    "penstock_jobs_index_upkeep_seconds",
    "Seconds of one upkeep step of a search index: measure, train, fold, merge, compact, clean.",
    ["step"],
    buckets=exponential(0.002, 2, 24),
)
JOBS_USAGE_ROWS_TOTAL = Counter(
    "penstock_jobs_usage_rows_total", "Changes that consumers received, by account.", ["account"]
)
JOBS_USAGE_BYTES_TOTAL = Counter(
    "penstock_jobs_usage_bytes_total", "Bytes of changes that consumers received, by account.", ["account"]
)
JOBS_USAGE_TASK_SECONDS_TOTAL = Counter(
    "penstock_jobs_usage_task_seconds_total",
    "Seconds that consumers and their readers worked, by account.",
    ["account"],
)

# The HTTP API.
API_REQUESTS_TOTAL = Counter(
    "penstock_api_requests_total",
    "Requests by method, route and status.",
    ["method", "route", "status"],
)
API_REQUEST_SECONDS = Histogram(
    "penstock_api_request_seconds",
    "Seconds from the arrival of a request to the end of its response.",
    ["route"],
    buckets=_SECONDS,
)
API_REFUSED_TOTAL = Counter(
    "penstock_api_refused_total",
    "Requests refused before they were processed: token, admin, rate, body, readers, requests, host,"
    " origin, connections, slow.",
    ["why"],
)
API_SEARCHES_RUNNING = Gauge("penstock_api_searches_running", "Searches that a process works on.")
API_SEARCHES_ENDED_TOTAL = Counter(
    "penstock_api_searches_ended_total",
    "Searches whose process ended before they did: deadline, died.",
    ["why"],
)

# Spark.
ROWS_TOTAL = Counter(
    "penstock_rows_total",
    "Rows by what was done with them (read, encode, write, consume) and who did it: spark, or local.",
    ["stage", "engine"],
)
SPARK_SESSION_STARTING = Gauge(
    "penstock_spark_session_starting",
    "1 while Spark starts: until there is a session, and it has run its first small job.",
)
SPARK_SESSION_MISSING = Gauge(
    "penstock_spark_session_missing",
    "1 while work needs a Spark session and there is none: it died, or could not be built.",
)
SPARK_EXECUTORS_MISSING = Gauge(
    "penstock_spark_executors_missing",
    "1 while tasks have waited for half a minute and no executor runs any.",
)
SPARK_SESSIONS_LOST_TOTAL = Counter(
    "penstock_spark_sessions_lost_total",
    "Spark sessions that died: Java, its gateway or the master was lost.",
)
