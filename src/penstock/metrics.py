"""Every metric of Penstock, declared once with its help text.

Names of the design documents keep all but their prefix: `tidb_tikvclient_x` is `penstock_kv_x`.
"""

from bisect import bisect_left

from prometheus_client import Counter, Gauge, Histogram

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
    """A histogram that takes many equal observations at the cost of one, for paths too hot for each."""

    def observe_many(self, amount: float, count: int) -> None:
        """Observe the same amount `count` times."""
        self._sum.inc(amount * count)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(count)


_SECONDS = exponential(0.0005, 2, 20)
_NANOSECONDS = exponential(1_000, 4, 17)
_SIZES = exponential(1, 2, 11)

# The client: transactions.
KV_TS_FUTURE_WAIT_SECONDS = Histogram(
    "penstock_kv_ts_future_wait_seconds",
    "Time a transaction waited for its start timestamp after asking for it.",
    buckets=exponential(0.000005, 2, 24),
)
KV_TXN_CMD_DURATION_SECONDS = Histogram(
    "penstock_kv_txn_cmd_duration_seconds",
    "Duration of a transaction's commands: commit, rollback, get, batch_get, lock_keys.",
    ["type", "scope"],
    buckets=_SECONDS,
)
KV_LOCAL_LATCH_WAIT_SECONDS = Histogram(
    "penstock_kv_local_latch_wait_seconds",
    "Time an optimistic commit waited for local latches.",
    buckets=_SECONDS,
)
KV_BATCH_EXECUTOR_TOKEN_WAIT_DURATION = Histogram(
    "penstock_kv_batch_executor_token_wait_duration",
    "Nanoseconds a batch of mutations waited for a rate-limit token.",
    buckets=_NANOSECONDS,
)
KV_TXN_REGIONS_NUM = Histogram(
    "penstock_kv_txn_regions_num",
    "Regions touched by one action of a transaction.",
    ["type", "scope"],
    buckets=_SIZES,
)
KV_TXN_WRITE_KV_NUM = Histogram(
    "penstock_kv_txn_write_kv_num", "Mutations of one transaction.", ["scope"], buckets=exponential(1, 4, 12)
)
KV_TXN_WRITE_SIZE_BYTES = Histogram(
    "penstock_kv_txn_write_size_bytes",
    "Bytes of keys and values written by one transaction.",
    ["scope"],
    buckets=exponential(16, 4, 14),
)
KV_COMMIT_TXN_COUNTER = Counter("penstock_kv_commit_txn_counter", "Two-phase commits, by result.", ["type"])
KV_ASYNC_COMMIT_TXN_COUNTER = Counter(
    "penstock_kv_async_commit_txn_counter", "Async commits, by result.", ["type"]
)
KV_ONE_PC_TXN_COUNTER = Counter("penstock_kv_one_pc_txn_counter", "One-phase commits, by result.", ["type"])
KV_TXN_HEART_BEAT = Histogram(
    "penstock_kv_txn_heart_beat", "Seconds a heart beat of a primary lock took.", ["type"], buckets=_SECONDS
)
KV_TTL_LIFETIME_REACH_TOTAL = Counter(
    "penstock_kv_ttl_lifetime_reach_total",
    "Transactions whose locks were no longer refreshed because of their age.",
)
KV_LOCK_RESOLVER_ACTIONS_TOTAL = Counter(
    "penstock_kv_lock_resolver_actions_total", "Steps taken to resolve locks of other transactions.", ["type"]
)
KV_BACKOFF_SECONDS = Histogram(
    "penstock_kv_backoff_seconds", "Sleep before a retry, by reason.", ["type"], buckets=_SECONDS
)

# The client: regions and RPC.
KV_REQUEST_SECONDS = Histogram(
    "penstock_kv_request_seconds",
    "Duration of sending one request to a store.",
    ["type", "store"],
    buckets=_SECONDS,
)
KV_REGION_ERR_TOTAL = Counter("penstock_kv_region_err_total", "Region errors answered by stores.", ["type"])
KV_RPC_ERR_TOTAL = Counter(
    "penstock_kv_rpc_err_total", "Requests without an answer, by gRPC status.", ["type", "store"]
)
KV_REGION_CACHE_OPERATIONS_TOTAL = Counter(
    "penstock_kv_region_cache_operations_total", "Operations of the region cache.", ["type", "result"]
)
KV_LOAD_REGION_CACHE_SECONDS = Histogram(
    "penstock_kv_load_region_cache_seconds",
    "Time to load regions from the placement driver.",
    ["type"],
    buckets=_SECONDS,
)
KV_STORE_LIVENESS_STATE = Gauge(
    "penstock_kv_store_liveness_state", "0 reachable, 1 unreachable, 2 unknown.", ["store"]
)
KV_BATCH_WAIT_DURATION = Histogram(
    "penstock_kv_batch_wait_duration",
    "Nanoseconds to push a request into the batch channel.",
    buckets=_NANOSECONDS,
)
KV_BATCH_SEND_LATENCY = Histogram(
    "penstock_kv_batch_send_latency",
    "Nanoseconds of one iteration of the batch send loop, without the wait for its first request.",
    buckets=_NANOSECONDS,
)
KV_BATCH_RECV_LATENCY = Histogram(
    "penstock_kv_batch_recv_latency",
    "Nanoseconds the batch receive loop waited for a message, by result.",
    ["result"],
    buckets=_NANOSECONDS,
)
KV_BATCH_WAIT_OVERLOAD = Counter(
    "penstock_kv_batch_wait_overload",
    "Times the send loop waited for more requests because a store was overloaded.",
)
KV_BATCH_PENDING_REQUESTS = Histogram(
    "penstock_kv_batch_pending_requests",
    "Requests in the batch channel when the send loop looked.",
    ["store"],
    buckets=_SIZES,
)
KV_BATCH_REQUESTS = Histogram(
    "penstock_kv_batch_requests", "Requests in one batch message.", ["store"], buckets=_SIZES
)
KV_BATCH_CLIENT_NO_AVAILABLE_CONNECTION_TOTAL = Counter(
    "penstock_kv_batch_client_no_available_connection_total",
    "Batches that found every connection of a store busy being re-created.",
)
KV_BATCH_CLIENT_RESET = Histogram(
    "penstock_kv_batch_client_reset", "Seconds to re-create a batch stream after an error.", buckets=_SECONDS
)

# The embedded store: storage.
STORE_ENGINE_WRITE_SECONDS = Histogram(
    "penstock_store_engine_write_seconds",
    "Time to make one group of writes durable.",
    buckets=exponential(0.00005, 2, 20),
)
STORE_ENGINE_GROUP_WRITES = Histogram(
    "penstock_store_engine_group_writes", "Writes made durable together.", buckets=_SIZES
)
STORE_LATCH_WAIT_SECONDS = Histogram(
    "penstock_store_latch_wait_seconds",
    "Time a write command waited for the latches of its keys.",
    buckets=exponential(0.00005, 2, 20),
)
STORE_LOCK_WAIT_SECONDS = Histogram(
    "penstock_store_lock_wait_seconds",
    "Time a pessimistic lock request waited for another transaction's lock, by outcome.",
    ["outcome"],
    buckets=_SECONDS,
)
STORE_DEADLOCKS_TOTAL = Counter(
    "penstock_store_deadlocks_total", "Pessimistic lock requests refused because they closed a cycle."
)

# The embedded store: change streams.
STORE_CDC_SUBSCRIPTIONS = Gauge(
    "penstock_store_cdc_subscriptions", "Regions subscribed to, over all streams."
)
STORE_CDC_PENDING_BYTES = Gauge(
    "penstock_store_cdc_pending_bytes", "Bytes of changes that wait to be sent, over all streams."
)
STORE_CDC_ROWS_TOTAL = Counter("penstock_store_cdc_rows_total", "Rows of live changes sent to subscriptions.")
STORE_CDC_SCAN_SECONDS = Histogram(
    "penstock_store_cdc_scan_seconds", "Duration of an incremental scan.", buckets=_SECONDS
)
STORE_CDC_CONGESTED_TOTAL = Counter(
    "penstock_store_cdc_congested_total",
    "Streams whose subscriptions were ended because the client was slow.",
)

# The puller: from change streams to the consumer. `ticdc_x` is `penstock_x`.
SPAN_PIPELINE_INFLIGHT_BYTES = Gauge(
    "penstock_log_puller_span_pipeline_inflight_bytes", "Approximate bytes held by the pipeline's quota."
)
SPAN_PIPELINE_INFLIGHT_BATCHES = Gauge(
    "penstock_log_puller_span_pipeline_inflight_batches",
    "Data batches that hold quota and wait to be persisted.",
)
SPAN_PIPELINE_PENDING_RESOLVED_BARRIERS = Gauge(
    "penstock_log_puller_span_pipeline_pending_resolved_barriers",
    "Resolved timestamps that wait for data before them to be persisted.",
)
SPAN_PIPELINE_ACTIVE_SUBSCRIPTIONS = Gauge(
    "penstock_log_puller_span_pipeline_active_subscriptions", "Subscriptions in the pipeline."
)
SPAN_PIPELINE_QUOTA_ACQUIRE_DURATION_SECONDS = CountedHistogram(
    "penstock_log_puller_span_pipeline_quota_acquire_duration_seconds",
    "Time a data batch waited for quota.",
    buckets=exponential(0.00004, 2, 28),
)
SPAN_PIPELINE_RESOLVED_BARRIER_DROPPED_TOTAL = Counter(
    "penstock_log_puller_span_pipeline_resolved_barrier_dropped_total",
    "Resolved timestamps that were obsolete on arrival or merged into one that waited for the same data.",
)
SPAN_PIPELINE_RESOLVED_BARRIER_COMPACTION_TOTAL = Counter(
    "penstock_log_puller_span_pipeline_resolved_barrier_compaction_total",
    "Times the list of pending resolved timestamps was compacted.",
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
    "Regions of all subscriptions: asked (waiting for their scan to end) and initialized.",
    ["state"],
)
PULLER_RESOLVED_TS_LAG = Gauge(
    "penstock_subscription_client_resolved_ts_lag", "Seconds the slowest subscription is behind."
)
PULLER_RESOLVE_LOCK_TOTAL = Counter(
    "penstock_subscription_client_resolve_lock_count",
    "Times the locks of a region that hold back its resolved timestamp were resolved.",
)
PULLER_RESOLVE_LOCK_DROPPED_TOTAL = Counter(
    "penstock_subscription_client_resolve_lock_task_drop_count",
    "Such tasks that were dropped because too many waited.",
)

# The event store.
EVENTSTORE_WAL_WRITE_SECONDS = Histogram(
    "penstock_eventstore_wal_write_seconds", "Write and fsync of one group of the log.", buckets=_SECONDS
)
EVENTSTORE_WAL_GROUP_BYTES = Histogram(
    "penstock_eventstore_wal_group_bytes",
    "Bytes of raw batches in one group of the log.",
    buckets=exponential(256, 4, 10),
)
EVENTSTORE_WAL_BYTES = Gauge("penstock_eventstore_wal_bytes", "Bytes of the log on the local disk.")
EVENTSTORE_ROWS_TOTAL = Counter(
    "penstock_eventstore_rows_total",
    "Rows handed over: stored, late (resolved before), disowned (a newer owner has the table).",
    ["outcome"],
)
EVENTSTORE_MEMORY_BYTES = Gauge("penstock_eventstore_memory_bytes", "Unflushed rows held in memory.")
EVENTSTORE_SPILLED_BYTES_TOTAL = Counter(
    "penstock_eventstore_spilled_bytes_total", "Rows left to the log because memory was full."
)
EVENTSTORE_FLUSH_SECONDS = Histogram(
    "penstock_eventstore_flush_seconds", "Duration of one table's flush.", buckets=_SECONDS
)
EVENTSTORE_FLUSHED_ROWS_TOTAL = Counter(
    "penstock_eventstore_flushed_rows_total", "Rows written to objects, by side.", ["side"]
)
EVENTSTORE_FLUSH_FAILURES_TOTAL = Counter(
    "penstock_eventstore_flush_failures_total", "Flushes that did not succeed, by reason.", ["reason"]
)
EVENTSTORE_UNKNOWN_ROWS_TOTAL = Counter(
    "penstock_eventstore_unknown_rows_total", "Tombstones flushed whose row was never captured."
)
EVENTSTORE_INDEX_BUILDS_TOTAL = Counter(
    "penstock_eventstore_index_builds_total", "Tables whose primary-key index was built from their objects."
)
EVENTSTORE_INDEX_SECONDS = Histogram(
    "penstock_eventstore_index_seconds", "Bringing a primary-key index up to date once.", buckets=_SECONDS
)
EVENTSTORE_MERGES_TOTAL = Counter(
    "penstock_eventstore_merges_total",
    "Merges that were written: committed, or overtaken (an input was gone by then).",
    ["outcome"],
)
EVENTSTORE_MERGE_SECONDS = Histogram(
    "penstock_eventstore_merge_seconds", "Planning, writing and committing one merge.", buckets=_SECONDS
)
EVENTSTORE_MERGED_BYTES_TOTAL = Counter(
    "penstock_eventstore_merged_bytes_total",
    "Sizes of the objects that merges read and wrote.",
    ["direction"],
)
EVENTSTORE_TRANSFERRED_ROWS_TOTAL = Counter(
    "penstock_eventstore_transferred_rows_total",
    "Tombstones committed while a merge was written, moved to its objects.",
)
EVENTSTORE_ARCHIVED_OBJECTS_TOTAL = Counter(
    "penstock_eventstore_archived_objects_total", "Removed objects that became history."
)
EVENTSTORE_COLLECTED_FILES_TOTAL = Counter(
    "penstock_eventstore_collected_files_total",
    "Files deleted: history, manifest, watermark, orphan (left by a crash).",
    ["what"],
)
EVENTSTORE_UPKEEP_FAILURES_TOTAL = Counter(
    "penstock_eventstore_upkeep_failures_total",
    "Merges, collections and sweeps that did not succeed, by reason.",
    ["duty", "reason"],
)
EVENTSTORE_RESOLVED_LAG_SECONDS = Gauge(
    "penstock_eventstore_resolved_lag_seconds", "How far the slowest table's resolved-ts is behind the clock."
)

# Changes.
CHANGES_BATCHES_TOTAL = Counter(
    "penstock_changes_batches_total", "Batches of changes given to readers, by hint.", ["hint"]
)
CHANGES_ROWS_TOTAL = Counter(
    "penstock_changes_rows_total", "Rows of changes given to readers, by side.", ["side"]
)
CHANGES_COALESCED_ROWS_TOTAL = Counter(
    "penstock_changes_coalesced_rows_total", "Rows of changes that came to nothing or into one with others."
)

# The sink. `flush_count` and its kin: see penstock.changefeeds.sinks.storage.buffers.Reason.
SINK_CHECKPOINT_LAG_SECONDS = Gauge(
    "penstock_sink_checkpoint_lag_seconds",
    "How far the checkpoint of a changefeed is behind the clock.",
    ["changefeed"],
)
SINK_DISPATCHERS = Gauge("penstock_sink_dispatchers", "Dispatchers of a changefeed.", ["changefeed"])
SINK_READING_DISPATCHERS = Gauge(
    "penstock_sink_reading_dispatchers", "Dispatchers with changes or a DDL ahead of them.", ["changefeed"]
)
SINK_SPOOL_BYTES = Gauge(
    "penstock_sink_spool_bytes", "Encoded bytes that are not on the remote yet.", ["changefeed"]
)
SINK_SPOOL_ITEMS = Gauge(
    "penstock_sink_spool_items", "Encoded chunks that are not on the remote yet.", ["changefeed"]
)
SINK_SPOOL_RETAINED_BYTES = Gauge(
    "penstock_sink_spool_retained_bytes",
    "Bytes of all segments that are held: what is not on the remote yet, and what lies beside it.",
    ["changefeed"],
)
SINK_SPOOL_MARK_BYTES = Gauge(
    "penstock_sink_spool_mark_bytes",
    "Marks of the spool: its quota; high, above which nothing more is read; low, from which it goes on.",
    ["changefeed", "mark"],
)
SINK_WAKE_CALLS_TOTAL = Counter(
    "penstock_sink_wake_calls_total", "Events after which a dispatcher was let go on.", ["changefeed"]
)
SINK_WAKE_SUPPRESSED_TOTAL = Counter(
    "penstock_sink_wake_suppressed_total",
    "Events whose dispatcher had to wait for the spool to empty first.",
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
    "How long the oldest event that is not on the remote has been with the sink; at most a second old.",
    ["changefeed"],
)
SINK_ENCODE_DURATION_SECONDS = Histogram(
    "penstock_sink_encode_duration_seconds", "Duration of one encode job.", ["changefeed"], buckets=_SECONDS
)
SINK_FLUSH_COUNT = Counter(
    "penstock_sink_flush_count",
    "Files by why they were closed: size, interval, ddl, quota, close; error: one could not be written.",
    ["changefeed", "reason"],
)
SINK_FLUSH_DURATION_SECONDS = Histogram(
    "penstock_sink_flush_duration_seconds",
    "From when a file was closed until its data and index were on the remote.",
    ["changefeed", "reason"],
    buckets=_SECONDS,
)
SINK_FLUSH_FILE_SIZE_BYTES = Histogram(
    "penstock_sink_flush_file_size_bytes",
    "Sizes of data files.",
    ["changefeed"],
    buckets=exponential(1024, 2, 20),
)
SINK_FILES_TOTAL = Counter("penstock_sink_files_total", "Data files on the remote.", ["changefeed"])
SINK_ROWS_TOTAL = Counter("penstock_sink_rows_total", "Rows in data files on the remote.", ["changefeed"])
SINK_BYTES_TOTAL = Counter("penstock_sink_bytes_total", "Bytes of data files on the remote.", ["changefeed"])
SINK_STALE_ROWS_TOTAL = Counter(
    "penstock_sink_stale_rows_total",
    "Rows that were left out because the remote has a newer version of their table already.",
    ["changefeed"],
)
SINK_DDL_DRAIN_DURATION_SECONDS = Histogram(
    "penstock_sink_ddl_drain_duration_seconds",
    "Time a dispatcher's changes before a DDL took to be on the remote.",
    ["changefeed"],
    buckets=_SECONDS,
)
SINK_DDL_DRAIN_WAIT_ENCODE_SECONDS = Histogram(
    "penstock_sink_ddl_drain_wait_encode_seconds",
    "Of that, until they were in the spool.",
    ["changefeed"],
    buckets=_SECONDS,
)
SINK_DDL_DRAIN_WAIT_REMOTE_SECONDS = Histogram(
    "penstock_sink_ddl_drain_wait_remote_seconds",
    "Of that, from the spool to the remote.",
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
    "Failures by where: encode, place, begin, write, release, ddl, checkpoint, sweep.",
    ["changefeed", "stage"],
)

# Traces.
TRACING_SPANS_TOTAL = Counter(
    "penstock_tracing_spans_total",
    "Spans of traces: sent, dropped (more came than could be sent), failed (the endpoint did not take them).",
    ["outcome"],
)

# Jobs: the runner.
JOBS_RUNNER = Gauge("penstock_jobs_runner", "1 while this process is the one that runs jobs.")
JOBS_TAKEOVERS_TOTAL = Counter(
    "penstock_jobs_takeovers_total", "How often this process became the one that runs jobs."
)
JOBS_JOBS = Gauge(
    "penstock_jobs_jobs", "Jobs by the state of their last iteration; paused ones apart.", ["state"]
)
JOBS_WATERMARK_LAG_SECONDS = Gauge(
    "penstock_jobs_watermark_lag_seconds", "How far a job's watermark is behind the database's time.", ["job"]
)
JOBS_TICK_SECONDS = Histogram(
    "penstock_jobs_tick_seconds",
    "Looking for jobs that are due: full (at all tables) or part (at those that cannot wait).",
    ["scope"],
    buckets=_SECONDS,
)
JOBS_SUBMITTED_TOTAL = Counter(
    "penstock_jobs_submitted_total",
    "Iterations handed to the scheduler, by rule: first, shared, lagging, own.",
    ["rule"],
)
JOBS_REFUSED_ITERATIONS_TOTAL = Counter(
    "penstock_jobs_refused_iterations_total", "Iterations for which the scheduler's queue had no room."
)
JOBS_RAISED_WATERMARKS_TOTAL = Counter(
    "penstock_jobs_raised_watermarks_total", "Watermarks raised in memory because the table had no changes."
)
JOBS_LOOK_FAILURES_TOTAL = Counter(
    "penstock_jobs_look_failures_total", "Looks at tables that failed, so that their jobs waited."
)
JOBS_TRIGGER_FAULTS_TOTAL = Counter(
    "penstock_jobs_trigger_faults_total", "Custom triggers that gave no answer."
)
JOBS_ADOPTED_TOTAL = Counter("penstock_jobs_adopted_total", "Rows of the log taken over from another runner.")
JOBS_LOG_REPLAYS_TOTAL = Counter(
    "penstock_jobs_log_replays_total", "How often the whole log was read again because history was gone."
)
JOBS_FLUSHED_WATERMARKS_TOTAL = Counter(
    "penstock_jobs_flushed_watermarks_total", "Watermarks that had only moved in memory, written to the log."
)
JOBS_COLLECTED_TOTAL = Counter(
    "penstock_jobs_collected_total", "Rows of jobs dropped long ago, removed from the log."
)

# Jobs: the scheduler and its iterations.
JOBS_VERIFICATIONS_TOTAL = Counter(
    "penstock_jobs_verifications_total",
    "Targets compared with their sources on schedule, by result: same, differs, failed.",
    ["result"],
)
JOBS_VERIFY_SECONDS = Histogram(
    "penstock_jobs_verify_seconds", "Comparing a target with its source.", buckets=exponential(0.01, 2, 20)
)
JOBS_DIFFERENCES = Gauge(
    "penstock_jobs_differences", "Rows that were wrong in a target when it was last compared.", ["job"]
)
JOBS_QUEUED_ITERATIONS = Gauge(
    "penstock_jobs_queued_iterations", "Iterations that wait for a worker, or to be tried again."
)
JOBS_RUNNING_ITERATIONS = Gauge("penstock_jobs_running_iterations", "Iterations that are executed.")
JOBS_QUEUE_WAIT_SECONDS = Histogram(
    "penstock_jobs_queue_wait_seconds",
    "From when an iteration was handed over, or was due again, until a worker took it.",
    buckets=_SECONDS,
)
JOBS_ITERATION_SECONDS = Histogram(
    "penstock_jobs_iteration_seconds",
    "How long an iteration had its worker, in one try.",
    buckets=exponential(0.002, 2, 24),
)
JOBS_ENDINGS_TOTAL = Counter(
    "penstock_jobs_endings_total",
    "Ends of jobs' tries: completed, followed (the target had come further), canceled, fenced, resynced,"
    " retried, failed, permanent.",
    ["how"],
)
JOBS_SCANS_TOTAL = Counter(
    "penstock_jobs_scans_total",
    "Reads of a table's changes: batches (one for all consumers), frame (one for all, on executors).",
    ["kind"],
)
JOBS_DETACHED_TOTAL = Counter(
    "penstock_jobs_detached_total", "Consumers that others stopped waiting for: they go on from disk."
)
JOBS_CUT_OFF_TOTAL = Counter(
    "penstock_jobs_cut_off_total", "Consumers that needed more disk than they may have, and catch up alone."
)
JOBS_SPOOL_BYTES = Gauge("penstock_jobs_spool_bytes", "Changes on disk for consumers that were detached.")
JOBS_ABANDONED_CONSUMERS = Gauge(
    "penstock_jobs_abandoned_consumers", "Consumers that were canceled and go on all the same."
)
JOBS_INDEX_UPKEEP_SECONDS = Histogram(
    "penstock_jobs_index_upkeep_seconds",
    "Care of search indexes: measure, train, fold, merge, compact, clean.",
    ["step"],
    buckets=exponential(0.002, 2, 24),
)
JOBS_USAGE_ROWS_TOTAL = Counter(
    "penstock_jobs_usage_rows_total", "Changes given to consumers, by account.", ["account"]
)
JOBS_USAGE_BYTES_TOTAL = Counter("penstock_jobs_usage_bytes_total", "Bytes of them, by account.", ["account"])
JOBS_USAGE_TASK_SECONDS_TOTAL = Counter(
    "penstock_jobs_usage_task_seconds_total",
    "Time that consumers worked, and their readers, by account.",
    ["account"],
)

# The HTTP API.
API_REQUESTS_TOTAL = Counter(
    "penstock_api_requests_total",
    "Requests, by the route that answered and the status.",
    ["method", "route", "status"],
)
API_REQUEST_SECONDS = Histogram(
    "penstock_api_request_seconds",
    "From a request's arrival to the end of its answer.",
    ["route"],
    buckets=_SECONDS,
)
API_REFUSED_TOTAL = Counter(
    "penstock_api_refused_total",
    "Requests that were refused before they were looked at: token, admin, rate, body, readers, host, origin.",
    ["why"],
)
